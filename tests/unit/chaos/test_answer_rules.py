"""Rules with answers, on the messages of one connection: matches, order of replies, sessions."""

import copy
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.chaos.faults.links import Answer, LinkRule, Observe
from quorumlog.chaos.network.answer_rules import AnswerBook, ErrorRule
from quorumlog.chaos.network.exchange import Exchange
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.wire.codec.message import Request, Response
from quorumlog.wire.codec.messages import fetch, heartbeat, metadata, produce
from quorumlog.wire.codec.schemas import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

TOPIC_ID: Final = bytes(range(16))


class Connection:
    """A connection under rules, with a broker that a test plays."""

    def __init__(self, *effects: Answer | Observe, chance: Sequence[float] = (0.5,)) -> None:
        draws = cycle(chance)
        self.book = AnswerBook()
        self.state = LinkState(lambda: next(draws), self.book)
        for number, effect in enumerate(effects):
            self.state.impose(LinkRule(f"r{number}", (), effect))
        self.exchange = Exchange("kafka", self.state)
        self.headers: dict[int, RequestHeader] = {}
        self.answered: list[tuple[int, Any]] = []  # in the order of arrival at the client

    def ask(
        self, number: int, request: Request[Any], version: int, client: str = "c", split: int = 0
    ) -> Any:
        """Send a request; return the request that arrives at the broker, or None.

        `split`: the bytes of each read.
        """
        frame = b"".join(
            encode_request(request, api_version=version, correlation_id=number, client_id=client)
        )
        self.headers[number] = decode_request(frame[4:])[0]
        passed = b""
        for start in range(0, len(frame), split or len(frame)):
            part = frame[start : start + (split or len(frame))]
            pieces = self.exchange.shape_requests(self.exchange.requests.feed(part))
            passed += b"".join(piece.content for piece in pieces)
            self._arrive(b"".join(bytes(one.content) for one in self.exchange.due_replies()))
        return decode_request(passed[4:])[1] if passed else None

    def reply(self, number: int, response: Response, split: int = 0) -> None:
        """Answer a request as the broker."""
        frame = b"".join(encode_response(self.headers[number], response))
        passed = b""
        for start in range(0, len(frame), split or len(frame)):
            part = frame[start : start + (split or len(frame))]
            pieces = self.exchange.shape_replies(self.exchange.replies.feed(part))
            passed += b"".join(piece.content for piece in pieces)
        self._arrive(passed)

    def _arrive(self, data: bytes) -> None:
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            number = int.from_bytes(data[4:8], "big")
            header = self.headers[number]
            _, response = decode_response(header.api_key, header.api_version, data[4:size])
            self.answered.append((number, response))
            data = data[size:]

    @property
    def numbers(self) -> list[int]:
        return [number for number, _ in self.answered]

    def tally(self, rule: str = "r0") -> tuple[int, int]:
        tally = self.book.tallies()[rule]
        return tally["matched"], tally["answered"]


def to_produce(*partitions: int, topic: str = "orders", acks: int = -1) -> produce.ProduceRequest:
    data = [produce.PartitionProduceData(index=n, records=b"records") for n in partitions]
    named = produce.TopicProduceData(name=topic, topic_id=TOPIC_ID, partition_data=data)
    return produce.ProduceRequest(acks=acks, topic_data=[named])


def produced(*partitions: int, topic: str = "orders", throttle: int = 0) -> produce.ProduceResponse:
    data = [produce.PartitionProduceResponse(index=n, base_offset=7) for n in partitions]
    named = produce.TopicProduceResponse(name=topic, topic_id=TOPIC_ID, partition_responses=data)
    return produce.ProduceResponse(responses=[named], throttle_time_ms=throttle)


def errors_of(response: Any) -> dict[int, int]:
    return {
        one.index: one.error_code
        for topic in response.responses
        for one in topic.partition_responses
    }


LOST_LEADER: Final = Answer("Produce", "NOT_LEADER_OR_FOLLOWER")


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
@pytest.mark.parametrize("split", [0, 1, 5])
def test_a_refused_request_is_answered_here(version: int, split: int) -> None:
    one = Connection(LOST_LEADER)
    assert one.ask(1, to_produce(0, 1), version, split=split) is None
    [(number, response)] = one.answered
    assert (number, errors_of(response)) == (1, {0: 6, 1: 6})
    assert one.tally() == (1, 1)


def test_replies_keep_the_order_of_the_requests() -> None:
    one = Connection(Answer("Produce", "REQUEST_TIMED_OUT"))
    assert one.ask(1, heartbeat.HeartbeatRequest(), 4) is not None
    assert one.ask(2, to_produce(0), 9) is None
    assert one.ask(3, heartbeat.HeartbeatRequest(), 4) is not None
    assert one.ask(4, to_produce(0), 9) is None
    assert one.numbers == []
    one.reply(1, heartbeat.HeartbeatResponse(), split=3)
    assert one.numbers == [1, 2]
    one.reply(3, heartbeat.HeartbeatResponse())
    assert one.numbers == [1, 2, 3, 4]


def test_a_request_from_before_the_rule_is_answered_first() -> None:
    one = Connection()
    one.ask(1, heartbeat.HeartbeatRequest(), 4)
    one.ask(2, to_produce(0, acks=0), 9)  # without a response
    one.state.impose(LinkRule("r0", (), Answer("Heartbeat", "NOT_COORDINATOR")))
    assert one.ask(3, heartbeat.HeartbeatRequest(), 4) is None
    assert one.numbers == []
    one.reply(1, heartbeat.HeartbeatResponse())
    assert one.numbers == [1, 3]


def test_only_the_named_partition_is_refused() -> None:
    one = Connection(Answer("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", partition=1))
    arrived = one.ask(1, to_produce(0, 1), 9)
    assert [data.index for data in arrived.topic_data[0].partition_data] == [0]
    one.reply(1, produced(0, throttle=5), split=4)
    [(_, response)] = one.answered
    assert errors_of(response) == {0: 0, 1: 6}
    assert response.throttle_time_ms == 5
    assert one.ask(2, to_produce(0), 9) is not None
    assert one.ask(3, to_produce(1, topic="bills"), 9) is not None
    assert one.tally() == (1, 1)


def test_two_rules_answer_two_partitions_of_one_request() -> None:
    one = Connection(
        Answer("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", partition=0),
        Answer("Produce", "REQUEST_TIMED_OUT", topic="orders", partition=1),
    )
    assert one.ask(1, to_produce(0, 1), 9) is None
    assert errors_of(one.answered[0][1]) == {0: 6, 1: 7}


def test_appended_requests_are_carried_out_before_the_error() -> None:
    one = Connection(Answer("Produce", "REQUEST_TIMED_OUT", after="appended", times=1))
    assert one.ask(1, to_produce(0, 1), 9) is not None
    one.reply(1, produced(0, 1, throttle=9))
    assert errors_of(one.answered[0][1]) == {0: 7, 1: 7}
    assert one.answered[0][1].throttle_time_ms == 9
    assert one.ask(2, to_produce(0), 9) is not None
    one.reply(2, produced(0))
    assert errors_of(one.answered[1][1]) == {0: 0}
    one = Connection(Answer("Produce", "REQUEST_TIMED_OUT", "orders", 1, after="appended"))
    assert one.ask(1, to_produce(0, 1), 9) is not None
    one.reply(1, produced(0, 1))
    assert errors_of(one.answered[0][1]) == {0: 0, 1: 7}


def test_without_a_response_the_connection_ends_instead() -> None:
    one = Connection(LOST_LEADER)
    assert one.ask(1, to_produce(0, acks=0), 9) is None
    assert one.exchange.resets
    one = Connection(Answer("Produce", "REQUEST_TIMED_OUT", after="appended"))
    assert one.ask(1, to_produce(0, acks=0), 9) is not None
    assert (one.tally(), one.exchange.resets) == ((0, 0), False)


def test_limits_of_a_rule() -> None:
    def refused(effect: Answer, chance: Sequence[float] = (0.5,)) -> list[int]:
        one = Connection(effect, chance=chance)
        return [number for number in range(1, 6) if one.ask(number, to_produce(0), 9) is None]

    assert refused(Answer("Produce", "NOT_LEADER_OR_FOLLOWER", times=2)) == [1, 2]
    assert refused(Answer("Produce", "NOT_LEADER_OR_FOLLOWER", on_call=3)) == [3]
    share = Answer("Produce", "NOT_LEADER_OR_FOLLOWER", share_ppm=400_000)
    assert refused(share, chance=[0.1, 0.9, 0.3, 0.5, 0.39]) == [1, 3, 5]
    of_topic = Answer("Produce", "NOT_LEADER_OR_FOLLOWER", topic="orders", on_call=2)
    assert refused(of_topic) == [2]


def test_each_rule_keeps_its_own_counts() -> None:
    one = Connection(Answer("Produce", "NOT_LEADER_OR_FOLLOWER", times=1))
    assert one.ask(1, to_produce(0), 9) is None
    for name in (0, 0, *range(3_000)):
        one.state.impose(LinkRule(f"other {name}", (), Observe("Produce", "orders")))
        assert name or one.tally("other 0") == (0, 0)
        assert one.ask(2, to_produce(0), 9) is not None
        one.state.lift(f"other {name}")
    assert one.tally() == (1, 1)
    assert len(one.book.tallies()) == 1_001


def test_a_rule_of_one_client() -> None:
    one = Connection(Answer("Produce", "NOT_LEADER_OR_FOLLOWER", client_id="desk"))
    assert one.ask(1, to_produce(0), 9, client="desks") is not None
    assert one.ask(2, to_produce(0), 9, client="desk") is None


def test_a_topic_is_known_by_its_id_from_metadata_before_the_rule() -> None:
    one = Connection()
    one.ask(1, metadata.MetadataRequest(topics=None), 12)
    topic = metadata.MetadataResponseTopic(name="orders", topic_id=TOPIC_ID)
    one.reply(1, metadata.MetadataResponse(topics=[topic]))
    one.state.impose(LinkRule("r0", (), Answer("Produce", "NOT_LEADER_OR_FOLLOWER", "orders", 0)))
    assert one.ask(2, to_produce(0), 13) is None
    assert one.ask(3, to_produce(1), 13) is not None
    assert one.tally() == (1, 1)


def test_metadata_reaches_the_broker_without_the_refused_topics() -> None:
    one = Connection(Answer("Metadata", "LEADER_NOT_AVAILABLE", topic="orders"))
    topics = [metadata.MetadataRequestTopic(name=name) for name in ("orders", "bills")]
    arrived = one.ask(1, metadata.MetadataRequest(topics=topics), 9)
    assert [topic.name for topic in arrived.topics] == ["bills"]
    broker = metadata.MetadataResponseBroker(node_id=1, host="h", port=9)
    bills = metadata.MetadataResponseTopic(name="bills")
    one.reply(1, metadata.MetadataResponse(brokers=[broker], topics=[bills]))
    response = one.answered[0][1]
    assert {topic.name: topic.error_code for topic in response.topics} == {"orders": 5, "bills": 0}
    assert response.brokers == [broker]


@pytest.mark.parametrize("version", [0, 9])
def test_metadata_of_all_topics_is_changed_in_its_response(version: int) -> None:
    one = Connection(Answer("Metadata", "LEADER_NOT_AVAILABLE", topic="orders", partition=1))
    everything = metadata.MetadataRequest(topics=[] if version == 0 else None)
    assert one.ask(1, everything, version) is not None
    parts = [metadata.MetadataResponsePartition(partition_index=n, leader_id=1) for n in (0, 1)]
    topic = metadata.MetadataResponseTopic(name="orders", partitions=parts)
    one.reply(1, metadata.MetadataResponse(topics=[topic]))
    [changed] = one.answered[0][1].topics
    assert {part.partition_index: part.error_code for part in changed.partitions} == {0: 0, 1: 5}


def to_fetch(*partitions: int, session: int = 0, epoch: int = -1) -> fetch.FetchRequest:
    parts = [fetch.FetchPartition(partition=n) for n in partitions]
    topics = [fetch.FetchTopic(topic="orders", partitions=parts)] if parts else []
    return fetch.FetchRequest(
        max_wait_ms=500, session_id=session, session_epoch=epoch, topics=topics
    )


def test_a_session_ends_while_a_rule_needs_the_partitions_of_a_fetch() -> None:
    one = Connection(Answer("Fetch", "NOT_LEADER_OR_FOLLOWER", "orders", 1, times=1))
    assert one.ask(1, to_fetch(session=9, epoch=4), 12) is None
    assert one.answered[0][1].error_code == 70  # FETCH_SESSION_ID_NOT_FOUND
    assert one.tally() == (0, 0)
    arrived = one.ask(2, to_fetch(0, epoch=0), 12)
    assert (arrived.session_id, arrived.session_epoch) == (0, -1)  # no new session
    one.reply(2, fetch.FetchResponse())
    arrived = one.ask(3, to_fetch(0, 1, epoch=0), 12)
    assert [part.partition for part in arrived.topics[0].partitions] == [0]
    assert arrived.max_wait_ms == 0
    one.reply(3, fetch.FetchResponse())
    [topic] = one.answered[2][1].responses
    assert [(part.partition_index, part.error_code) for part in topic.partitions] == [(1, 6)]
    arrived = one.ask(4, to_fetch(0, 1, epoch=0), 12)  # the rule is spent
    assert arrived.session_epoch == 0


def test_observers_count_and_change_nothing() -> None:
    one = Connection(Observe("Produce"), Observe("Produce", "orders", 0), Observe("Fetch", "bills"))
    assert one.ask(1, to_produce(0), 9).acks == -1
    one.reply(1, produced(0))
    one.ask(2, to_produce(1), 9, client="other")
    assert errors_of(one.answered[0][1]) == {0: 0}
    assert [one.tally(f"r{n}")[0] for n in range(3)] == [2, 1, 0]


def test_the_requests_seen_are_counted_by_api_and_client() -> None:
    one = Connection(Answer("Fetch", "NOT_LEADER_OR_FOLLOWER"))
    one.ask(1, to_produce(0), 9)
    one.ask(2, heartbeat.HeartbeatRequest(), 4)
    one.ask(3, to_produce(0), 9)
    assert one.book.tallies()["r0"]["seen"] == [["Heartbeat", "c", 1], ["Produce", "c", 2]]
    one.state.impose(LinkRule("met", (), Observe("Produce")))
    one.ask(4, to_produce(0), 9)
    for ended in ("r0", "met"):
        one.state.lift(ended)
    assert [len(tally["seen"]) for tally in one.book.tallies().values()] == [2, 0]


def test_a_malformed_request_passes() -> None:
    one = Connection(LOST_LEADER)
    frame = b"\0\0\0\x0d\0\0\0\x09\0\0\0\1\0\1cxx"
    pieces = one.exchange.shape_requests(one.exchange.requests.feed(frame))
    assert b"".join(piece.content for piece in pieces) == frame


def test_the_held_bytes_of_a_cut_off_request_pass_at_the_end() -> None:
    one = Connection(LOST_LEADER)
    chunks = encode_request(to_produce(0), api_version=9, correlation_id=1, client_id="c")
    frame = b"".join(chunks)[:-3]
    assert one.exchange.shape_requests(one.exchange.requests.feed(frame)) == []
    assert one.exchange.held_requests() + one.exchange.requests.rest() == frame


LONG: Final = "o" * 130
IDS: Final = {"orders": TOPIC_ID, "bills": b"b" * 16, LONG: b"l" * 16}
NAMES: Final = st.sampled_from([*IDS])
RULED: Final = st.sampled_from(["orders", LONG])
CLIENT_IDS: Final = st.sampled_from(["", "c", "cc"])
EFFECTS: Final = st.one_of(
    st.builds(
        Observe,
        st.sampled_from(["Produce", "Fetch"]),
        st.one_of(st.just(""), RULED),
        st.integers(-1, 1),
        CLIENT_IDS,
    ),
    st.builds(
        Answer,
        st.sampled_from(["Produce", "Fetch"]),
        st.just("NOT_LEADER_OR_FOLLOWER"),
        st.one_of(st.just(""), RULED),
        st.integers(-1, 1),
        CLIENT_IDS,
        on_call=st.integers(0, 2),
        times=st.integers(0, 1),
        after=st.sampled_from(["refused", "appended"]),
    ),
)
ENTRIES: Final = st.lists(
    st.tuples(NAMES, st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)),
    min_size=1,
    max_size=2,
    unique_by=lambda entry: entry[0],
)
RECORDS: Final = st.sampled_from([b"records", b"of orders", TOPIC_ID])


def _to_produce(
    entries: list[tuple[str, list[int]]], acks: int, records: bytes
) -> produce.ProduceRequest:
    data = [
        produce.TopicProduceData(
            name=name,
            topic_id=IDS[name],
            partition_data=[produce.PartitionProduceData(index=n, records=records) for n in parts],
        )
        for name, parts in entries
    ]
    return produce.ProduceRequest(acks=acks, topic_data=data)


def _to_fetch(entries: list[tuple[str, list[int]]], epoch: int, offset: int) -> fetch.FetchRequest:
    topics = [
        fetch.FetchTopic(
            topic=name,
            topic_id=IDS[name],
            partitions=[fetch.FetchPartition(partition=n, fetch_offset=offset) for n in parts],
        )
        for name, parts in entries
    ]
    session = 5 if epoch > 0 else 0
    return fetch.FetchRequest(session_id=session, session_epoch=epoch, topics=topics)


REQUESTS: Final = st.one_of(
    st.tuples(
        st.builds(_to_produce, ENTRIES, st.sampled_from([0, -1]), RECORDS),
        st.sampled_from([3, 8, 9, 12, 13]),
    ),
    st.tuples(
        st.builds(_to_fetch, ENTRIES, st.sampled_from([-1, 0, 0, 3]), st.integers(0, 300)),
        st.sampled_from([4, 7, 11, 12, 13, 15]),
    ),
)
STEPS: Final = st.lists(
    st.one_of(
        st.tuples(REQUESTS, st.sampled_from(["c", "cc"]), st.sampled_from([0, 0, 7, 70])),
        EFFECTS,
        st.just("lift"),
        st.just("learn"),
    ),
    max_size=8,
)


def _after(first: Answer | Observe, steps: list[Any], *, by_bytes: bool) -> tuple[Any, ...]:
    """Return all that a connection has passed on, answered and counted after the steps."""
    with pytest.MonkeyPatch.context() as patch:
        if not by_bytes:
            patch.setattr(ErrorRule, "matches", lambda *_: None)
            patch.setattr(AnswerBook, "plan", lambda *_: None)
        one, arrived, rules = Connection(first), [], ["r0"]
        for number, step in enumerate(steps):
            match step:
                case "lift":
                    one.state.lift(rules[-1])
                case "learn":
                    one.book.topics.keep(12, _metadata())
                case ((request, version), client, split):
                    arrived += [
                        one.ask(2 * number + again, request, version, client, split)
                        for again in (0, 1)
                    ]
                case effect:
                    rules.append(f"r{len(rules)}")
                    one.state.impose(LinkRule(rules[-1], (), effect))
        return arrived, one.answered, one.exchange.resets, one.book.tallies()


def _metadata() -> bytes:
    topics = [metadata.MetadataResponseTopic(name=name, topic_id=at) for name, at in IDS.items()]
    header = RequestHeader(3, 12, 1, "c")
    response = metadata.MetadataResponse(topics=topics)
    return b"".join(encode_response(header, response))[4:]


@given(first=EFFECTS, steps=STEPS)
def test_a_decision_by_bytes_is_that_by_fields(first: Answer | Observe, steps: list[Any]) -> None:
    """The bytes of a frame only spare the decoding: without them the outcome is the same.

    So does a plan of an earlier request: each request is sent twice.
    """
    expected = _after(first, copy.deepcopy(steps), by_bytes=False)
    assert _after(first, copy.deepcopy(steps), by_bytes=True) == expected


def test_a_session_does_not_hide_a_topic_behind_a_rule_for_all_fetches() -> None:
    one = Connection(Observe("Fetch"), Answer("Fetch", "NOT_LEADER_OR_FOLLOWER", "bills"))
    assert one.ask(1, to_fetch(0, session=9, epoch=4), 12) is None
    assert one.answered[0][1].error_code == 70  # FETCH_SESSION_ID_NOT_FOUND
    assert one.ask(2, to_fetch(0, epoch=0), 12).session_epoch == -1
    assert one.tally() == (1, 0)


def test_a_request_like_the_last_one_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Connection(Observe("Produce", "orders"), Observe("Fetch", "orders"))
    one.ask(1, to_produce(0), 9)
    one.ask(2, to_fetch(0, epoch=0), 12)
    monkeypatch.setattr(AnswerBook, "plan", None)
    monkeypatch.setattr(AnswerBook, "judge", None)
    assert one.ask(3, to_produce(0), 9) is not None
    assert one.ask(4, to_fetch(0, epoch=0), 12).session_epoch == -1
    assert [one.tally(f"r{n}")[0] for n in (0, 1)] == [2, 2]


def test_a_topic_matches_once_its_id_is_learnt() -> None:
    one = Connection(Observe("Produce", "orders"))
    one.ask(1, to_produce(0), 13)
    one.book.topics.keep(12, _metadata())
    one.ask(2, to_produce(0), 13)
    assert one.tally() == (1, 0)


def test_a_request_of_an_unknown_version_has_no_plan() -> None:
    one = Connection(Observe("Produce", "orders"))
    one.ask(1, to_produce(0), 9)
    chunks = encode_request(to_produce(0), api_version=9, correlation_id=2, client_id="c")
    frame = b"".join(chunks)
    [piece] = one.exchange.shape_requests(
        one.exchange.requests.feed(frame[:6] + b"\1\x09" + frame[8:])
    )
    assert len(piece.content) == len(frame)
    assert one.tally() == (1, 0)


@pytest.mark.parametrize("version", [7, 11, 12, 14, 15])
@pytest.mark.parametrize("epoch", [-1, 0, 3])
def test_the_session_of_a_fetch_without_the_topic_is_that_of_its_fields(
    version: int, epoch: int
) -> None:
    request = to_fetch(0, 1, session=5 if epoch > 0 else 0, epoch=epoch)
    request.topics[0].topic_id = TOPIC_ID
    one = Connection(Answer("Fetch", "NOT_LEADER_OR_FOLLOWER", "bills", 1))
    arrived = one.ask(1, request, version)
    assert one.tally() == (0, 0)
    if epoch > 0:
        assert arrived is None
        assert one.answered[0][1].error_code == 70  # FETCH_SESSION_ID_NOT_FOUND
        return
    assert (arrived.session_id, arrived.session_epoch) == (0, -1)
    assert [one.partition for one in arrived.topics[0].partitions] == [0, 1]
    assert (arrived.max_wait_ms, arrived.min_bytes) == (request.max_wait_ms, request.min_bytes)

"""Both halves of a fetch session, without a broker: ids, epochs, limits, what is named."""

from itertools import count

import pytest

from quorumlog.broker.fetching.core import fetch_sessions
from quorumlog.broker.fetching.core.fetch_sessions import (
    EPOCH_MAX,
    EVICTABLE_AFTER_MS,
    RESTLESS_PARTITIONS,
    SWEEP_INTERVAL_MS,
    SWEEP_PARTITIONS,
    FetchSession,
    FetchSessions,
    next_epoch,
)
from quorumlog.broker.following.core.session_client import Changes, SessionClient
from quorumlog.broker.partitions.core.data_path import FetchedPartition, PartitionFetch
from quorumlog.broker.partitions.core.fetch_wakeup import FetchWakeup
from quorumlog.broker.partitions.core.purgatory import WaitingFetch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    NO_EPOCH,
    UNKNOWN_OFFSET,
    Offset,
    TopicId,
    TopicPartition,
)

TOPIC_ID = TopicId(b"t" * 16)


def fetch_of(index: int, offset: int = 0, topic_id: TopicId | None = TOPIC_ID) -> PartitionFetch:
    return PartitionFetch(
        topic_partition=TopicPartition("t", index),
        topic_id=topic_id,
        fetch_offset=Offset(offset),
        max_bytes=1000,
        leader_epoch=NO_EPOCH,
        last_fetched_epoch=NO_EPOCH,
        log_start_offset=UNKNOWN_OFFSET,
    )


def sessions_of(slots_max: int) -> FetchSessions:
    ids = count(1)
    return FetchSessions(slots_max, lambda: next(ids))


def offered(
    sessions: FetchSessions, now_ms: int, *indexes: int, privileged: bool = False
) -> FetchSession | None:
    fetches = [fetch_of(index) for index in indexes]
    return sessions.open(now_ms, fetches, uses_topic_ids=True, is_privileged=privileged)


def opened(
    sessions: FetchSessions, now_ms: int, *indexes: int, privileged: bool = False
) -> FetchSession:
    session = offered(sessions, now_ms, *indexes, privileged=privileged)
    assert session is not None
    return session


def found(high_watermark: int, records: bytes = b"", **values: object) -> FetchedPartition:
    answer = FetchedPartition(ErrorCode.NONE, Offset(high_watermark), Offset(0), [records])
    return answer._replace(records=[records] if records else [], **values)  # type: ignore[arg-type]  # the names are its


def test_a_session_goes_on_step_by_step() -> None:
    sessions = sessions_of(2)
    session = opened(sessions, 0, 0, 1)
    resume = sessions.resume
    assert resume(0, 9, 1, uses_topic_ids=True) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert resume(0, 1, 2, uses_topic_ids=True) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert resume(0, 1, 1, uses_topic_ids=False) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert resume(0, 1, 1, uses_topic_ids=True) is session
    assert resume(0, 1, 1, uses_topic_ids=True) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.epoch = EPOCH_MAX
    assert resume(0, 1, EPOCH_MAX, uses_topic_ids=True) is session
    assert session.epoch == 1  # 0 would begin a session


def test_a_session_that_asks_for_nothing_any_more_is_closed() -> None:
    sessions, closed = sessions_of(2), list[FetchSession]()
    sessions.on_closed = closed.append
    session = opened(sessions, 0, 0, 1)
    assert sessions.change(session, [fetch_of(0, 5)], [(TOPIC_ID, 1), (TOPIC_ID, 7)])
    assert [one.fetch.fetch_offset for one in session.candidates(0)] == [5]
    assert not sessions.change(session, [], [(TOPIC_ID, 0)])
    assert (len(sessions), closed) == (0, [session])
    assert not sessions.note(TopicPartition("t", 0), FetchWakeup.CHANGED)
    assert offered(sessions, 0) is None  # a fetch of nothing


def test_idle_sessions_go_first_and_followers_take_the_place_of_consumers() -> None:
    sessions = sessions_of(2)
    assert offered(sessions, 0, 0)
    assert offered(sessions, 1, 0)
    assert offered(sessions, 2, 0) is None
    sessions.resume(3, 1, 1, uses_topic_ids=True)  # so that 2 is idle for longest
    assert offered(sessions, 4, 0, privileged=True)
    assert sessions.resume(4, 2, 1, uses_topic_ids=True) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert offered(sessions, 5, 0, privileged=True)
    assert offered(sessions, 6, 0, privileged=True) is None  # no follower gives way
    assert offered(sessions, 5 + EVICTABLE_AFTER_MS, 0)  # only the first has been idle too long
    assert offered(sessions, 5 + EVICTABLE_AFTER_MS, 0) is None
    assert offered(sessions_of(0), 0, 0) is None


def test_the_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 3)
    sessions = sessions_of(9)
    session = opened(sessions, 0, 0, 1)
    assert offered(sessions, 0, 0, 1) is None
    assert sessions.change(session, [fetch_of(2)], [])
    assert not sessions.change(session, [fetch_of(3)], [])
    assert offered(sessions, 0, 0, 1, 2)


def test_only_what_has_changed_is_looked_at_and_everything_now_and_then() -> None:
    sessions = sessions_of(1)
    session = opened(sessions, 0, 0, 1, 2)

    def looked_at(now_ms: int) -> list[int]:
        return [one.fetch.topic_partition.partition for one in session.candidates(now_ms)]

    def settle(index: int, *, is_settled: bool, is_final: bool = False) -> None:
        partition = session.partitions[TOPIC_ID, index]
        session.take_to_judge(partition.fetch)
        has_records = not (is_settled or is_final)
        session.settle(partition, is_settled=is_settled, is_final=is_final, has_records=has_records)

    assert looked_at(0) == [0, 1, 2]
    settle(0, is_settled=False)
    settle(1, is_settled=True)
    settle(2, is_settled=False, is_final=True)
    assert looked_at(1) == [2, 0]
    assert [key[1] for key, must_judge in session.unsettled.items() if not must_judge] == [0]
    sessions.note(TopicPartition("t", 1), FetchWakeup.APPENDED)
    assert looked_at(2) == [2, 0, 1]
    settle(0, is_settled=False)
    assert looked_at(2) == [2, 1, 0]  # so that it does not keep the others from a full answer
    settle(2, is_settled=True)
    settle(1, is_settled=True)
    settle(0, is_settled=True)
    assert looked_at(SWEEP_INTERVAL_MS - 1) == []
    assert looked_at(SWEEP_INTERVAL_MS) == [0, 1, 2]
    assert session.take_to_judge(fetch_of(1))


def test_a_change_that_a_waiting_fetch_does_not_wait_for_is_told_with_its_answer() -> None:
    sessions = sessions_of(1)
    session = opened(sessions, 0, 0)
    partition = session.partitions[TOPIC_ID, 0]
    session.take_to_judge(partition.fetch)
    session.settle(partition, is_settled=True)
    session.waiting = WaitingFetch(100, (), FetchWakeup.APPENDED)
    assert not sessions.note(TopicPartition("t", 0), FetchWakeup.COMMITTED)
    assert [key[1] for key, must_judge in session.unsettled.items() if not must_judge] == [0]
    assert sessions.note(TopicPartition("t", 0), FetchWakeup.APPENDED)


def test_a_large_session_is_looked_through_in_parts_and_few_that_are_restless_always() -> None:
    session = opened(sessions_of(1), 0, *range(7_000))

    def looked_at(now_ms: int) -> list[int]:
        found = session.candidates(now_ms)
        for partition in found:
            session.take_to_judge(partition.fetch)
            is_restless = partition.key[1] == 6_999
            session.settle(partition, is_settled=True, is_restless=is_restless)
        return [partition.key[1] for partition in found]

    assert len(looked_at(0)) == 7_000
    assert looked_at(SWEEP_INTERVAL_MS - 1) == []
    seen: list[int] = []
    for sweep in range(1, 7_000 // SWEEP_PARTITIONS + 1):
        part = looked_at(sweep * SWEEP_INTERVAL_MS)
        assert len(part) <= SWEEP_PARTITIONS + 1
        assert part[0] == 6_999  # a follower that is not in sync may become eligible to join
        seen += part[1:]
    assert sorted({*seen, 6_999}) == [*range(7_000)]


def test_many_that_are_restless_are_looked_at_in_turn() -> None:
    """A follower of a thousand partitions that starts is in sync with none of them."""
    count = 5 * RESTLESS_PARTITIONS // 2
    session = opened(sessions_of(1), 0, *range(count))

    def looked_at(now_ms: int) -> list[int]:
        found = session.candidates(now_ms)
        for partition in found:
            session.take_to_judge(partition.fetch)
            session.settle(partition, is_settled=True, is_restless=partition.key[1] > 0)
        return [partition.key[1] for partition in found]

    looked_at(0)
    seen: list[int] = []
    for sweep in range(1, 4):
        part = looked_at(sweep * SWEEP_INTERVAL_MS)
        assert len(part) <= RESTLESS_PARTITIONS + SWEEP_PARTITIONS
        seen += part[:RESTLESS_PARTITIONS]
    assert {*seen} == {*range(1, count)}


def test_news_that_come_after_the_judgement_are_not_settled_by_the_answer() -> None:
    sessions = sessions_of(1)
    session = opened(sessions, 0, 0)
    [partition] = session.candidates(0)
    assert session.take_to_judge(partition.fetch)
    sessions.note(TopicPartition("t", 0), FetchWakeup.CHANGED)  # a newer leader epoch
    session.settle(partition, is_settled=True, is_final=False)
    assert session.candidates(1) == [partition]
    assert session.take_to_judge(partition.fetch)


def test_what_was_told_is_not_told_again() -> None:
    sessions = sessions_of(1)
    session = opened(sessions, 0, 0)
    [partition] = session.candidates(0)
    assert partition.tell(found(0))
    assert not partition.tell(found(0))
    assert partition.tell(found(1))
    assert partition.tell(found(1, b"records"))
    assert partition.tell(found(1, log_start_offset=Offset(1)))
    refused = FetchedPartition(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert [partition.tell(refused), partition.tell(refused)] == [True, True]
    assert partition.tell(found(1, log_start_offset=Offset(1)))


def test_a_topic_whose_name_becomes_known_is_watched_by_it() -> None:
    sessions = sessions_of(1)
    nameless = fetch_of(0)
    nameless.topic_partition = TopicPartition("", 0)
    session = sessions.open(0, [nameless], uses_topic_ids=True, is_privileged=False)
    assert session is not None
    assert sessions.change(session, [fetch_of(0)], [])
    assert list(sessions.watchers.get(TopicPartition("", 0), ())) == []
    assert list(sessions.watchers.get(TopicPartition("t", 0), ())) == [session]


def test_two_topics_of_one_name_are_two_partitions_of_a_session() -> None:
    """A topic that was deleted and made again, while a client still asks for the first."""
    sessions, other = sessions_of(1), TopicId(b"n" * 16)
    session = opened(sessions, 0, 0)
    assert sessions.change(session, [fetch_of(0, topic_id=other)], [])
    assert len(session.partitions) == 2
    assert sessions.change(session, [], [(TOPIC_ID, 0)])
    assert list(sessions.watchers.get(TopicPartition("t", 0), ())) == [session]
    assert sessions.watchers[TopicPartition("t", 0)][session].fetch.topic_id == other


class Follower:
    """A client with a question for each key."""

    def __init__(self) -> None:
        self.session: SessionClient[str, int] = SessionClient()
        self.questions: dict[str, int] = {}
        self.looked_at: list[str] = []

    def question(self, key: str) -> int | None:
        self.looked_at.append(key)
        return self.questions.get(key)

    def changes(self, now_ms: int) -> Changes[str]:
        self.looked_at.clear()
        return self.session.changes(now_ms, self.questions, self.question)


def test_a_follower_names_what_is_another_question_by_now() -> None:
    follower = Follower()
    follower.questions = {"a": 1, "b": 1, "c": 1}
    assert follower.changes(0) == Changes(["a", "b", "c"], [])
    assert follower.session.answered(0, 77)
    assert (follower.session.session_id, follower.session.epoch) == (77, 1)
    follower.questions = {"a": 2, "c": 2}
    for key in "ab":
        follower.session.touch(key)
    assert follower.changes(1) == Changes(["a"], ["b"])
    assert follower.looked_at == ["a", "b"]
    assert follower.session.answered(0, 77)
    follower.questions["b"] = 1  # it was backing off, say
    assert follower.changes(2) == Changes(["b"], [])
    assert follower.session.answered(0, 77)
    assert follower.changes(SWEEP_INTERVAL_MS) == Changes(["c"], [])
    assert follower.session.asked == {"a": 2, "b": 1, "c": 2}
    assert follower.session.epoch == 3


def test_a_follower_of_many_looks_at_some_of_its_questions_in_turn() -> None:
    follower = Follower()
    follower.questions = {f"{number:03}": 1 for number in range(3 * SWEEP_PARTITIONS)}
    assert len(follower.changes(0).named) == 3 * SWEEP_PARTITIONS
    assert follower.session.answered(0, 77)
    seen: list[str] = []
    for sweep in (1, 2, 3):
        follower.changes(sweep * SWEEP_INTERVAL_MS)
        assert follower.session.answered(0, 77)
        assert len(follower.looked_at) == SWEEP_PARTITIONS
        seen += follower.looked_at
    assert sorted(seen) == sorted(follower.questions)


@pytest.mark.parametrize("error_code", [70, 71, 106])
def test_a_follower_whose_session_is_lost_begins_anew_and_closes_it(error_code: int) -> None:
    follower = Follower()
    follower.questions = {"a": 1}
    follower.changes(0)
    follower.session.answered(0, 77)
    follower.changes(1)
    assert not follower.session.answered(error_code, 0)
    assert (follower.session.session_id, follower.session.epoch) == (77, 0)
    assert follower.changes(2) == Changes(["a"], [])
    assert follower.session.answered(0, 78)
    assert (follower.session.session_id, follower.session.epoch) == (78, 1)


def test_a_follower_that_gets_no_session_names_everything_each_time() -> None:
    follower = Follower()
    follower.questions = {"a": 1, "b": 1}
    for now_ms in range(3):
        assert follower.changes(now_ms) == Changes(["a", "b"], [])
        assert follower.session.answered(0, 0)
        assert follower.session.epoch == 0


def test_epochs_come_around() -> None:
    assert [next_epoch(0), next_epoch(1), next_epoch(EPOCH_MAX)] == [1, 2, 1]


def test_an_answer_that_is_not_sent_is_taken_back() -> None:
    session = opened(sessions_of(1), 0, 0, 1)
    found = FetchedPartition(ErrorCode.NONE, Offset(3), Offset(0))
    for partition in session.partitions.values():
        assert partition.tell(found)
        session.settle(partition, is_settled=True)
    session.unsettled.clear()
    first, second = session.partitions.values()
    session.take_back([first.fetch])
    assert [one.key for one in session.candidates(0)] == [first.key]
    assert (first.tell(found), second.tell(found)) == (True, False)

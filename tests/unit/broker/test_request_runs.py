"""Produce requests of one read: which of them become one append, and their responses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from quorumlog.broker.handlers import produce
from quorumlog.broker.server.connection import Connection
from quorumlog.broker.server.request_runs import TEMPLATES_MAX, UNUSED_MAX, RequestRuns
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.metadata_quorum.controller_requests import CreateTopics
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Received
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.schemas import decode_request, decode_response, encode_request
from tests.support.broker.produce_twins import COPIED, FOLLOWER, NOW_MS, REQUESTS_MAX, Twins, Wire
from tests.support.broker.replicas import fetched_by
from tests.support.groups.single_broker import single_broker
from tests.support.native import LANES, native
from tests.support.waiting import until

PLAIN = TopicPartition("plain", 0)


@pytest.fixture(autouse=True, params=LANES)
def each_lane(request: pytest.FixtureRequest) -> Iterator[None]:
    with native(is_on=request.param):
        yield


def framed(
    at: TopicPartition,
    sequence: int,
    *,
    acks: int = 1,
    at_ms: int = NOW_MS,
    value: bytes = b"v",
    version: int = 9,
) -> bytes:
    """A request with one record of producer 5, or without producer if the sequence is -1."""
    records = encode_batch(
        [Record(0, at_ms, b"k", value)],
        producer_id=-1 if sequence < 0 else 5,
        producer_epoch=-1 if sequence < 0 else 1,
        base_sequence=sequence,
    )
    data = PartitionProduceData(index=at.partition, records=records)
    topic = TopicProduceData(name=at.topic, partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[topic])
    chunks = encode_request(
        request, api_version=version, correlation_id=1000 + sequence, client_id="client"
    )
    return b"".join(chunks)


def answers(sent: bytes | bytearray) -> list[tuple[int, int, int]]:
    """(correlation id, error code, base offset) of each response."""
    found = []
    while sent:
        size = int.from_bytes(sent[:4], "big")
        correlation_id, response = decode_response(0, 9, memoryview(bytes(sent[4 : 4 + size])))
        assert isinstance(response, ProduceResponse)
        slot = response.responses[0].partition_responses[0]
        found.append((correlation_id, slot.error_code, slot.base_offset))
        sent = sent[4 + size :]
    return found


@pytest.mark.parametrize(
    ("sequences", "runs"),
    [
        ((0, 1, 2, 3), [3]),  # the first request has no template yet
        ((0, 1, 2, 2, 3), [2, 1]),  # a repeated batch is answered with its first offset
        ((0, 1, 3, 2), [1, 1]),  # a gap is refused
        ((0, 1, -1, -1, 2), [1, 2, 1]),
        ((-1, -1, -1), [2]),
    ],
)
async def test_a_run_ends_before_a_batch_that_needs_more_than_an_append(
    tmp_path: Path, sequences: tuple[int, ...], runs: list[int]
) -> None:
    async with Twins(tmp_path) as twins:
        await twins.receive(b"".join(framed(PLAIN, each) for each in sequences))
        assert twins.fast.runs == runs
        assert len(answers(twins.fast.wire.sent)) == len(sequences)


@pytest.mark.parametrize("timestamps", [[NOW_MS] * 6, [1, 2, 9000, 9001, 9002, 9003], [-1] * 6])
async def test_segments_roll_within_a_run_where_they_roll_without(
    tmp_path: Path, timestamps: list[int]
) -> None:
    rolling = TopicPartition("rolling", 0)
    async with Twins(tmp_path) as twins:
        for size in (0, 20, 90):
            frames = [framed(rolling, -1, at_ms=each, value=b"v" * size) for each in timestamps]
            await twins.receive(b"".join(frames))
            await twins.receive(b"".join(frames))
        assert max(twins.fast.runs) > 1
        assert len(twins.fast.broker.replicas.drivers[rolling].log.segment_base_offsets) > 3


async def test_a_run_is_one_write_and_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Twins(tmp_path) as twins:
        await twins.receive(framed(PLAIN, 0))
        driver = twins.fast.broker.replicas.drivers[PLAIN]
        calls: list[str] = []

        def note(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def noted(self: Any, *arguments: Any, **options: Any) -> Any:
                if self in (driver.partition, driver.log._segments.active):
                    calls.append(name)
                return real(self, *arguments, **options)

            monkeypatch.setattr(owner, name, noted)

        note(type(driver.log._segments.active), "append")
        note(type(driver.partition), "appended")
        await twins.receive(b"".join(framed(PLAIN, each) for each in (1, 2, 3, 4)))
        assert calls == ["append", "appended"]
        assert twins.fast.runs == [4]


async def test_a_run_waits_as_one_and_is_answered_batch_by_batch(tmp_path: Path) -> None:
    async with Twins(tmp_path) as twins:
        await twins.receive(framed(COPIED, 0, acks=-1))
        await twins.both("follow", 1.0)
        await twins.receive(b"".join(framed(COPIED, each, acks=-1) for each in (1, 2, 3)))
        assert twins.fast.runs == [3]
        assert len(twins.fast.broker.replicas.appends._deadlines) == 1
        await twins.both("follow", 0.34)
        assert answers(twins.fast.wire.sent) == [(1000, 0, 0), (1001, 0, 1)]
        await twins.both("expire")
        assert answers(twins.fast.wire.sent)[2:] == [(1002, 7, -1), (1003, 7, -1)]


async def test_a_run_leaves_no_more_requests_under_way_than_allowed(tmp_path: Path) -> None:
    async with Twins(tmp_path) as twins:
        await twins.receive(framed(COPIED, 0, acks=-1))
        await twins.receive(b"".join(framed(COPIED, each, acks=-1) for each in range(1, 9)))
        assert twins.fast.runs == [REQUESTS_MAX - 1]
        assert not twins.fast.wire.reads
        for _ in range(3):
            await twins.both("follow", 1.0)
        assert twins.fast.wire.reads
        assert [one[2] for one in answers(twins.fast.wire.sent)] == [*range(9)]


async def test_requests_behind_a_run_are_handled_after_the_step_that_completes_it(
    tmp_path: Path,
) -> None:
    async with Twins(tmp_path) as twins:
        twin, seen = twins.fast, list[str]()
        await twin.receive(framed(COPIED, 0, acks=-1), [])
        await twin.receive(b"".join(framed(COPIED, each, acks=-1) for each in range(1, 9)), [])
        handle, appends = twin.connection.run_received, twin.broker.replicas.appends

        def begins() -> bool:
            seen.append("begins")
            return handle()

        vars(twin.connection)["run_received"] = begins
        driver = twin.broker.replicas.drivers[COPIED]
        driver.judge_follower_fetch(1, fetched_by(FOLLOWER, driver.log.log_end_offset))
        assert (seen, len(appends._deadlines)) == ([], 0)
        await twin.receive(b"", [])
        assert seen
        assert [one[2] for one in answers(twin.wire.sent)] == [*range(REQUESTS_MAX)]


async def test_a_leader_that_resigns_does_not_name_itself_as_the_leader(tmp_path: Path) -> None:
    async with Twins(tmp_path) as twins:
        await twins.receive(framed(COPIED, 0, acks=-1, version=12), [1] * 500)
        await twins.both("resign")
        sent = memoryview(twins.fast.wire.sent)[4:]
        _, response = decode_response(ProduceRequest.API_KEY, 12, sent)
        assert isinstance(response, ProduceResponse)
        (slot,) = response.responses[0].partition_responses
        assert slot.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not slot.current_leader
        assert not response.node_endpoints


async def test_requests_without_answer_are_not_under_way(tmp_path: Path) -> None:
    async with Twins(tmp_path) as twins:
        await twins.receive(framed(PLAIN, 0, acks=0) + framed(COPIED, 0, acks=-1))
        for first in range(1, 3 * REQUESTS_MAX, 3):
            frames = [framed(PLAIN, first + each, acks=0) for each in range(3)]
            await twins.receive(b"".join(frames))
        assert twins.fast.runs == [3] * REQUESTS_MAX
        assert twins.fast.wire.reads
        await twins.both("follow", 1.0)
        assert answers(twins.fast.wire.sent) == [(1000, 0, 0)]


async def test_a_failed_write_of_a_run_is_tried_again_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Twins(tmp_path) as twins:
        await twins.receive(framed(PLAIN, 0))
        log = twins.fast.broker.replicas.drivers[PLAIN].log
        real = type(log).append_run

        def full(self: Any, batches: Any, **options: Any) -> Any:
            if self is log and len(batches) > 1:
                raise StorageError("no space left on device")
            return real(self, batches, **options)

        monkeypatch.setattr(type(log), "append_run", full)
        await twins.receive(b"".join(framed(PLAIN, each) for each in (1, 2, 3)))
        assert [one[2] for one in answers(twins.fast.wire.sent)] == [0, 1, 2, 3]


def received(frame: bytes) -> Received:
    buffer = bytearray(frame)
    return buffer, memoryview(buffer).toreadonly()


def learned(runs: RequestRuns, frame: bytes) -> None:
    runs.learn(memoryview(frame)[4:], *decode_request(frame[4:]))


def test_a_connection_keeps_the_templates_of_several_partitions() -> None:
    runs = RequestRuns()
    places = [TopicPartition("orders" + "x" * (at % 3), at) for at in range(TEMPLATES_MAX)]
    for at in places:
        learned(runs, framed(at, 0))
    for at in places:
        frame = framed(at, 1)
        found = runs.find(received(frame), 0, len(frame), 1, len(frame))
        assert found is not None
        assert found[0].at == at
    learned(runs, framed(TopicPartition("one", 99), 0))
    assert len(runs._templates) == 1


def test_a_connection_whose_requests_never_match_makes_few_templates() -> None:
    runs = RequestRuns()
    for at in range(2 * UNUSED_MAX):
        learned(runs, framed(TopicPartition("orders", at), 0))
    assert runs.last is not None
    assert runs.last.at.partition == UNUSED_MAX - 1


def test_a_request_with_a_long_name_leaves_no_template() -> None:
    """Each of 16 templates would hold its names, whether or not the request is permitted."""
    runs = RequestRuns()
    for number in range(4):
        learned(runs, framed(TopicPartition(f"{number}{'x' * 30_000}", 0), 0))
    assert not runs._templates


def test_a_request_whose_template_is_known_makes_no_other() -> None:
    runs, frame = RequestRuns(), framed(PLAIN, 0)
    learned(runs, frame)
    (first,) = runs._templates.values()
    assert runs.find(received(frame), 0, len(frame), 1, len(frame)) is not None
    learned(runs, framed(PLAIN, 0, value=b"of another size"))  # its batch was not plain
    assert [*runs._templates.values()] == [first]
    assert runs.last is first
    learned(runs, framed(PLAIN, 0, acks=-1))
    assert len(runs._templates) == 2


def test_requests_of_other_apis_are_no_runs() -> None:
    runs, frame = RequestRuns(), framed(PLAIN, 0)
    learned(runs, frame)
    other = frame[:4] + b"\0\1" + frame[6:]
    assert runs.find(received(other), 0, len(other), 1, len(other)) is None


async def test_a_request_that_continues_in_slices_keeps_its_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "SLICE_S", -1.0)  # a slice for each partition
    batches = [encode_batch([Record(0, NOW_MS, b"k", bytes([at]) * 500)]) for at in range(2)]
    data = [PartitionProduceData(index=at, records=batch) for at, batch in enumerate(batches)]
    topic = TopicProduceData(name=PLAIN.topic, partition_data=data)
    request = ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[topic])
    frame = b"".join(encode_request(request, api_version=9, correlation_id=1, client_id=None))
    async with single_broker(tmp_path) as broker:
        made = NewTopic(name=PLAIN.topic, partitions=2, replication_factor=1)
        await broker.controller.ask(CreateTopics(topics=(made,)))
        connections = [Connection(broker.server) for _ in range(2)]
        for connection in connections:
            connection.connection_made(Wire())
        for connection, received in zip(connections, (frame, b"\0" * len(frame)), strict=True):
            connection.get_buffer(-1)[: len(received)] = received
            connection.buffer_updated(len(received))
        await until(lambda: cast(Wire, connections[0].transport).sent)
        for at, batch in enumerate(batches):
            log = broker.replicas.drivers[TopicPartition(PLAIN.topic, at)].log
            assert bytes(log.read(0, max_bytes=9999, end_offset=1)[0])[16:] == batch[16:]
        for connection in connections:
            connection.connection_lost(None)

"""Responses with errors: decoded beside the forwarded bytes, limited, and written in a thread."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.faults.apis import kafka_api_name
from quorumlog.chaos.faults.links import CLIENTS, DropReply, Link, LinkRule
from quorumlog.chaos.network.error_responses import (
    NO_OFFSET,
    NONE,
    RESPONSES_FILE,
    SECOND_NS,
    UNREADABLE,
    ErrorResponse,
    read_responses,
)
from quorumlog.chaos.network.links import Route
from quorumlog.chaos.network.network import Network
from quorumlog.chaos.network.recorder import Recorder
from quorumlog.chaos.network.response_errors import ErrorLog
from quorumlog.chaos.network.response_watch import Answered, ResponseWatch
from quorumlog.chaos.network.splitters import KafkaSplitter
from quorumlog.cluster.ports import free_ports
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Request, Response
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from quorumlog.wire.codec.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from quorumlog.wire.codec.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader, encode_request, encode_response

TOPIC_ID = bytes(range(16))
NOT_COORDINATOR, NOT_LEADER = ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER
Line = tuple[str, tuple[str, ...], tuple[str, ...]]  # error, partitions, names


def request_bytes(request: Request[Any], version: int, number: int = 7) -> bytes:
    return b"".join(
        encode_request(request, api_version=version, correlation_id=number, client_id="c17")
    )


def response_bytes(response: Response, version: int, number: int = 7) -> bytes:
    header = RequestHeader(response.API_KEY, version, number, "c17")
    return b"".join(encode_response(header, response))


def watched(watch: ResponseWatch, forth: bytes, back: bytes, size: int) -> list[Answered]:
    """Pass a request and a response through a connection, in reads of this size."""
    requests, replies = KafkaSplitter(kafka_api_name), KafkaSplitter(None)
    for start in range(0, len(forth), size):
        for piece in requests.feed(forth[start : start + size]):
            watch.note_request(piece)
    return [
        answered
        for start in range(0, len(back), size)
        for piece in replies.feed(back[start : start + size])
        if (answered := watch.response(piece)) is not None
    ]


def lines_of(request: Request[Any], response: Response, version: int) -> list[Line]:
    forth, back = request_bytes(request, version), response_bytes(response, version)
    [answered] = watched(ResponseWatch(), forth, back, len(forth) + len(back))
    assert answered.request.client_id == "c17"
    return [(one.error, one.partitions, one.names) for one in ErrorLog().lines(1, 2, answered)]


def offset_fetch(version: int, group_error: int, *offsets: tuple[int, int]) -> OffsetFetchResponse:
    """Return a response of `offsets`: (committed offset, error) of partitions 0, 1 and so on."""
    if version < 8:
        old = [
            OffsetFetchResponsePartition(partition_index=n, committed_offset=at, error_code=error)
            for n, (at, error) in enumerate(offsets)
        ]
        topics = [OffsetFetchResponseTopic(name="t", partitions=old)] if old else []
        return OffsetFetchResponse(topics=topics, error_code=group_error)
    new = [
        OffsetFetchResponsePartitions(partition_index=n, committed_offset=at, error_code=error)
        for n, (at, error) in enumerate(offsets)
    ]
    of_group = [OffsetFetchResponseTopics(name="t", topic_id=TOPIC_ID, partitions=new)]
    group = OffsetFetchResponseGroup(
        group_id="g", topics=of_group if new else [], error_code=group_error
    )
    return OffsetFetchResponse(groups=[group])


@pytest.mark.parametrize("version", range(2, 11))
def test_an_offset_fetch_shows_errors_of_the_group_and_of_partitions(version: int) -> None:
    topic = "t" if version < 10 else TOPIC_ID.hex()
    request = OffsetFetchRequest()
    of_group = lines_of(request, offset_fetch(version, NOT_COORDINATOR), version)
    assert of_group == [("NOT_COORDINATOR", (), ("g",) if version >= 8 else ())]
    error = ErrorCode.UNSTABLE_OFFSET_COMMIT
    mixed = lines_of(request, offset_fetch(version, 0, (5, 0), (-1, 0), (-1, error)), version)
    assert mixed == [
        (NO_OFFSET, (f"{topic}-1",), ()),
        ("UNSTABLE_OFFSET_COMMIT", (f"{topic}-2",), ()),
    ]
    assert lines_of(request, offset_fetch(version, 0, (5, 0)), version) == []


def test_each_shape_of_response_shows_its_errors() -> None:
    ok, bad = ErrorCode.NONE, NOT_LEADER
    produced = [
        PartitionProduceResponse(index=3, error_code=bad),
        PartitionProduceResponse(index=4),
    ]
    produce = ProduceResponse(
        responses=[TopicProduceResponse(name="t", partition_responses=produced)]
    )
    fetched = [PartitionData(partition_index=1, error_code=bad, records=b"")]
    fetch = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=fetched)])
    results = [
        AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=bad),
        AddPartitionsToTxnPartitionResult(partition_index=1, partition_error_code=bad),
    ]
    added = AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(name="t", results_by_partition=results)
        ]
    )
    found = FindCoordinatorResponse(
        coordinators=[Coordinator(key="g", error_code=bad), Coordinator(key="h", error_code=ok)]
    )
    cases: list[tuple[Request[Any], Response, int, list[Line]]] = [
        (ProduceRequest(), produce, 8, [(bad.name, ("t-3",), ())]),
        (FetchRequest(), fetch, 11, [(bad.name, ("t-1",), ())]),
        (AddPartitionsToTxnRequest(), added, 3, [(bad.name, ("t-0", "t-1"), ())]),
        (FindCoordinatorRequest(), found, 4, [(bad.name, (), ("g",))]),
        (EndTxnRequest(), EndTxnResponse(error_code=bad), 3, [(bad.name, (), ())]),
        (EndTxnRequest(), EndTxnResponse(), 3, []),
        (EndTxnRequest(), EndTxnResponse(error_code=9_999), 3, [("error 9999", (), ())]),
    ]
    for request, response, version, expected in cases:
        assert lines_of(request, response, version) == expected


def test_a_response_is_found_however_the_bytes_are_split() -> None:
    forth = b"".join(request_bytes(OffsetFetchRequest(), 3, number) for number in (1, 2))
    back = b"".join(
        response_bytes(offset_fetch(3, NOT_COORDINATOR, (1, 0)), 3, number) for number in (1, 2)
    )
    for size in (1, 2, 5, 12, 13, 14, 17, 40, 200):
        found = watched(ResponseWatch(), forth, back, size)
        assert [one.request.correlation_id for one in found] == [1, 2]
        assert all(one.response == found[0].response for one in found)


def test_a_large_response_and_one_of_another_api_are_left_alone() -> None:
    many = [(offset, 0) for offset in range(2_000)]
    large = response_bytes(offset_fetch(3, NOT_COORDINATOR, *many), 3)
    assert watched(ResponseWatch(), request_bytes(OffsetFetchRequest(), 3), large, 4_096) == []
    other = bytearray(request_bytes(EndTxnRequest(), 3))
    other[5] = 60  # DescribeCluster
    assert watched(ResponseWatch(), bytes(other), response_bytes(EndTxnResponse(), 3), 99) == []
    newer = bytearray(request_bytes(EndTxnRequest(), 3))
    newer[7] = 99  # a version without a message class
    assert watched(ResponseWatch(), bytes(newer), response_bytes(EndTxnResponse(), 3), 99) == []


def test_requests_without_a_response_do_not_accumulate() -> None:
    watch = ResponseWatch()
    for number in range(1, 1_202):
        watched(watch, request_bytes(EndTxnRequest(), 3, number), b"", 99)
    for number, is_kept in ((1, False), (201, False), (202, True), (1_201, True)):
        answered = watched(watch, b"", response_bytes(EndTxnResponse(), 3, number), 99)
        assert bool(answered) == is_kept


def answered_end_txn(error: int, client: str = "p1", number: int = 1) -> Answered:
    return Answered(RequestHeader(26, 3, number, client), EndTxnResponse(error_code=error))


def test_a_second_has_a_limited_number_of_lines_and_counts_the_rest() -> None:
    log = ErrorLog()
    bad = answered_end_txn(NOT_COORDINATOR)
    first = [line for at in range(30) for line in log.lines(5 * SECOND_NS + at, 1, bad)]
    assert len(first) == 20
    assert not any(line.left_out for line in first)
    assert len([*log.lines(5 * SECOND_NS, 2, bad)]) == 1  # another node has its own limit
    counted, after = log.lines(6 * SECOND_NS, 1, bad)
    assert (counted.node, counted.api, counted.left_out) == (1, "EndTxn", 10)
    assert (counted.time_ns, counted.until_ns) == (5 * SECOND_NS + 20, 6 * SECOND_NS)
    assert not counted.is_error
    assert after.is_error
    assert [*log.left_out()] == []
    for at in range(25):
        [*log.lines(6 * SECOND_NS + at, 1, bad)]
    assert [line.left_out for line in log.left_out()] == [6]


def test_the_first_success_after_errors_of_the_same_client_has_a_line() -> None:
    log = ErrorLog()

    def errors(error: int, client: str) -> list[str]:
        return [line.error for line in log.lines(1, 1, answered_end_txn(error, client))]

    assert errors(0, "p1") == []
    assert errors(NOT_COORDINATOR, "p1") == ["NOT_COORDINATOR"]
    assert errors(0, "p2") == []
    assert errors(0, "p1") == [NONE]
    assert errors(0, "p1") == []


def test_a_response_that_cannot_be_decoded_has_a_line() -> None:
    broken = response_bytes(offset_fetch(3, 0, (1, 0)), 3)[:-3]
    broken = (len(broken) - 4).to_bytes(4, "big") + broken[4:]
    [answered] = watched(ResponseWatch(), request_bytes(OffsetFetchRequest(), 3), broken, 99)
    assert [line.error for line in ErrorLog().lines(1, 1, answered)] == [UNREADABLE]


def test_topics_have_the_names_that_a_metadata_response_gave_to_their_ids() -> None:
    log = ErrorLog()
    topics = [MetadataResponseTopic(name="orders", topic_id=TOPIC_ID)]
    metadata = Answered(RequestHeader(3, 12, 1, "c1"), MetadataResponse(topics=topics))
    assert [*log.lines(1, 1, metadata)] == []
    partitions = [OffsetCommitResponsePartition(partition_index=2, error_code=NOT_COORDINATOR)]
    by_id = [OffsetCommitResponseTopic(topic_id=TOPIC_ID, partitions=partitions)]
    commit = Answered(RequestHeader(8, 10, 2, "c1"), OffsetCommitResponse(topics=by_id))
    [line] = log.lines(1, 1, commit)
    assert line.partitions == ("orders-2",)
    assert line.concerns("orders-2")
    assert not line.concerns("orders-1")
    assert MetadataRequest.API_KEY == 3
    assert OffsetCommitRequest.API_KEY == 8


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_responses(tmp_path) == []
    rows = [
        ErrorResponse(time_ns=9, node=1, api="EndTxn", client="p1", version=3, error="X"),
        ErrorResponse(time_ns=5, node=2, api="OffsetFetch", partitions=("t-0",), names=("g",)),
        ErrorResponse(time_ns=7, node=2, api="EndTxn", left_out=3),
    ]
    lines = [json.dumps(row.as_json()) + "\n" for row in rows]
    (tmp_path / RESPONSES_FILE).write_text("".join(lines) + '{"time_ns": 1')  # cut off
    assert read_responses(tmp_path) == sorted(rows, key=lambda row: row.time_ns)
    for wrong in ("[]", "{}", '{"time_ns": "x", "node": 1, "api": "a"}', "no"):
        (tmp_path / RESPONSES_FILE).write_text(wrong + "\n")
        with pytest.raises(ValueError, match=r"responses\.jsonl:1: not a response"):
            read_responses(tmp_path)


def test_a_recorder_writes_what_it_gets_from_its_start_on(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    recorder = Recorder(failed=failures.append, now_ns=iter(range(100, 200)).__next__)
    recorder.record(1, answered_end_txn(NOT_COORDINATOR, "too-early"))
    recorder.start(tmp_path / RESPONSES_FILE, 90)
    for _ in range(25):
        recorder.record(1, answered_end_txn(NOT_COORDINATOR))
    with pytest.raises(ValueError, match="recorded already"):
        recorder.start(tmp_path / "other", 0)
    recorder.close()
    recorder.record(1, answered_end_txn(NOT_COORDINATOR, "too-late"))
    rows = read_responses(tmp_path)
    assert [(row.time_ns, row.client) for row in rows[:2]] == [(10, "p1"), (11, "p1")]
    assert [row.left_out for row in rows] == [0] * 20 + [5]
    assert failures == []


def test_a_full_disk_is_a_failure_of_the_forwarders() -> None:
    failures: list[BaseException] = []
    recorder = Recorder(failed=failures.append)
    recorder.start(Path("/dev/full"), 0)
    recorder.record(1, answered_end_txn(NOT_COORDINATOR))
    recorder.close()
    assert [type(one) for one in failures] == [OSError]


class Node(asyncio.Protocol):
    """A node that answers each request with these bytes in turn."""

    def __init__(self, answers: Iterator[bytes]) -> None:
        self._answers = answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(next(self._answers))


async def forwarded(
    directory: Path, source: str, answers: Sequence[bytes], rules: Callable[[Network], None]
) -> list[bytes]:
    """Send a request for each answer through a forwarder; return the bytes that arrive."""
    listen, target = free_ports("127.0.0.1", 2)
    loop, failures = asyncio.get_running_loop(), list[BaseException]()
    node = iter(answers)
    server = await loop.create_server(lambda: Node(node), "127.0.0.1", target)
    tasks, recorder = Tasks(failures.append), Recorder(failed=failures.append)
    recorder.start(directory / RESPONSES_FILE, 0)
    link = Link(source, "3", "kafka")
    route = Route(link=link, listen=f"127.0.0.1:{listen}", target=f"127.0.0.1:{target}")
    network = Network([route], seed=1, tasks=tasks, recorder=recorder)
    await network.start()
    rules(network)
    received = []
    for answer in answers:
        reader, writer = await asyncio.open_connection("127.0.0.1", listen)
        writer.write(request_bytes(OffsetFetchRequest(), 3))
        try:
            received.append(await reader.readexactly(len(answer)))
        except (asyncio.IncompleteReadError, ConnectionError):
            received.append(b"")
        writer.close()
    await tasks.stop()
    network.close()
    recorder.close()
    server.close()
    assert failures == []
    return received


async def test_a_forwarder_records_what_it_passes_to_clients_and_changes_nothing(
    tmp_path: Path,
) -> None:
    bad, good = (
        response_bytes(offset_fetch(3, error, (1, 0)), 3) for error in (NOT_COORDINATOR, 0)
    )
    assert await forwarded(tmp_path, CLIENTS, [bad, good], lambda _: None) == [bad, good]
    first, second = read_responses(tmp_path)
    assert (first.node, first.client, first.api, first.error) == (
        *(3, "c17", "OffsetFetch"),
        "NOT_COORDINATOR",
    )
    assert (second.error, second.partitions) == (NONE, ("t-0",))
    assert await forwarded(tmp_path, "2", [bad], lambda _: None) == [bad]  # of another node
    assert read_responses(tmp_path) == []


async def test_a_response_that_is_lost_was_not_given_to_the_client(tmp_path: Path) -> None:
    bad = response_bytes(offset_fetch(3, NOT_COORDINATOR), 3)
    rule = LinkRule("r", (Link(CLIENTS, "3"),), DropReply("OffsetFetch"))
    assert await forwarded(tmp_path, CLIENTS, [bad], lambda one: one.impose(rule)) == [b""]
    assert read_responses(tmp_path) == []

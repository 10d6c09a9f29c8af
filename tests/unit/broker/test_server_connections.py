"""The server over a real socket: order, limits, turns, and requests that it cannot read."""

import asyncio
import logging
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.server import turns
from quorumlog.broker.server.api import BrokerContext, Disconnect, Reply
from quorumlog.broker.server.connection import Connection
from quorumlog.broker.server.turns import Turns
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumlog.wire.codec.messages.fetch import FetchRequest, FetchResponse
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.messages.metadata import MetadataRequest
from quorumlog.wire.codec.messages.sync_group import SyncGroupResponse
from quorumlog.wire.codec.schemas import RequestHeader, encode_request
from tests.support.broker.peer import (
    API_VERSIONS,
    FETCH,
    HEARTBEAT,
    METADATA,
    SYNC,
    Handle,
    beat,
    connected,
    serving,
)
from tests.support.groups.single_broker import SETTINGS
from tests.support.waiting import loop_turns, until


async def test_api_versions_says_exactly_what_is_registered(tmp_path: Path) -> None:
    ask = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    async with serving(tmp_path) as (_, _, port), connected(port) as peer:
        for version in range(5):
            peer.send(ask, version, version)
            correlation_id, response = await peer.answer(API_VERSIONS, version)
            assert correlation_id == version
            assert isinstance(response, ApiVersionsResponse)
            assert response.error_code == ErrorCode.NONE
            ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
            expected = {
                key: (handler.min_version, handler.max_version) for key, handler in HANDLERS.items()
            }
            assert ranges == {**expected, 0: (0, HANDLERS[0].max_version)}


async def test_a_newer_api_versions_is_answered_in_version_0(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, _, port), connected(port) as peer:
        unknown = struct.pack(">hhih", API_VERSIONS, 99, 7, 4) + b"test" + b"whatever"
        peer.writer.write(struct.pack(">i", len(unknown)) + unknown)
        correlation_id, response = await peer.answer(API_VERSIONS, 0)
        assert isinstance(response, ApiVersionsResponse)
        assert (correlation_id, response.error_code) == (7, ErrorCode.UNSUPPORTED_VERSION)
        assert len(response.api_keys) == len(HANDLERS)
        peer.send(ApiVersionsRequest(), 8, 3)  # on the same connection, as clients do
        assert (await peer.answer(API_VERSIONS, 3))[0] == 8


GARBAGE = {
    "an unknown API": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "an API of Kafka that is not served": struct.pack(">ihhih", 10, 78, 1, 1, -1),
    "an unknown version": struct.pack(">ihhih", 10, METADATA, 99, 1, -1),
    "a version that is not served": struct.pack(">ihhih", 10, 0, 2, 1, -1),
    "a negative size": struct.pack(">i", -5),
    "more than the limit": struct.pack(">i", 0x7FFFFFFF),
    "no header": struct.pack(">i", 3) + b"abc",
    "a request that ends early": struct.pack(">ihhih", 12, METADATA, 9, 1, -1) + b"\0\xff",
    "an HTTP client": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


def later_answers(
    later: list[asyncio.Future[Any]], *, at_once: Callable[[int], bool] = lambda _: False
) -> Handle:
    """Handle requests by futures, which it appends; others at once."""

    def handle(context: BrokerContext, header: RequestHeader, request: Any) -> Reply:
        if at_once(header.correlation_id):
            return beat(header.correlation_id)
        later.append(asyncio.get_running_loop().create_future())
        return later[-1]

    return handle


@pytest.mark.parametrize("name", GARBAGE)
async def test_what_cannot_be_read_ends_the_connection_with_one_line(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="quorumlog.broker.server.server"):
        async with serving(tmp_path) as (_, _, port):
            async with connected(port) as peer:
                peer.send(ApiVersionsRequest(), 1, 0)
                peer.writer.write(GARBAGE[name])
                assert (await peer.answer(API_VERSIONS, 0))[0] == 1, "what came before is answered"
                assert await peer.is_closed()
            async with connected(port) as other:
                other.send(ApiVersionsRequest(), 2, 0)
                assert (await other.answer(API_VERSIONS, 0))[0] == 2
    assert len(caplog.records) == 1


async def test_a_refused_request_that_is_sent_again_and_again_has_one_line_for_each_software(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer = struct.pack(">ihhihx", 11, METADATA, 99, 1, 0)
    async with serving(tmp_path) as (_, _, port):
        for name in ("tool", "tool", "other", "tool", "") * 2:
            async with connected(port) as peer:
                if name:
                    software = {"client_software_name": name, "client_software_version": "1"}
                    peer.send(ApiVersionsRequest(**software), 1, 3)
                    await peer.answer(API_VERSIONS, 3)
                peer.writer.write(newer)
                assert await peer.is_closed()
    said = [line.partition(" ")[2] for line in caplog.messages]
    reason = "closed: Metadata v99 is not supported"
    assert said == [f"('tool 1'): {reason}", f"('other 1'): {reason}", reason]


async def test_refused_requests_of_ever_new_kinds_have_a_line_each_up_to_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.broker.server.server.REFUSALS_MAX", 3)
    async with serving(tmp_path) as (_, _, port):
        for version in range(50, 60):
            async with connected(port) as peer:
                peer.writer.write(struct.pack(">ihhihx", 11, METADATA, version, 1, 0))
                assert await peer.is_closed()
    assert len(caplog.messages) == 4


async def test_requests_may_arrive_in_any_pieces(tmp_path: Path) -> None:
    request = b"".join(
        encode_request(ApiVersionsRequest(), api_version=0, correlation_id=5, client_id="x")
    )
    async with serving(tmp_path) as (_, _, port):
        for split in range(1, len(request)):
            async with connected(port) as peer:
                peer.writer.write(request[:split])
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                peer.writer.write(request[split:] + request)
                assert (await peer.answer(API_VERSIONS, 0))[0] == 5
                assert (await peer.answer(API_VERSIONS, 0))[0] == 5


async def test_responses_leave_in_the_order_of_the_requests(tmp_path: Path) -> None:
    later: list[asyncio.Future[Any]] = []
    handle = later_answers(later, at_once=lambda number: number % 3 == 0)

    async with serving(tmp_path, handle) as (_, _, port), connected(port) as peer:
        for correlation_id in range(9):
            peer.send(HeartbeatRequest(), correlation_id, 1)
        await until(lambda: len(later) == 6)
        for index, answer in reversed([*enumerate(later)]):
            answer.set_result(beat(100 + index))
        answers = [await peer.answer(HEARTBEAT, 1) for _ in range(9)]
        assert [correlation_id for correlation_id, _ in answers] == [*range(9)]
        times = [response.throttle_time_ms for _, response in answers]  # type: ignore[attr-defined]
        assert times == [0, 100, 101, 3, 102, 103, 6, 104, 105]


async def test_requests_wait_while_a_task_answers_a_whole_request(tmp_path: Path) -> None:
    gate, seen = asyncio.Event(), list[str]()

    async def slowly(request: HeartbeatRequest) -> HeartbeatResponse:
        await gate.wait()
        seen.append(request.member_id)
        return beat(1)

    def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
        if header.correlation_id == 0:
            return slowly(request)
        seen.append(request.member_id)
        return beat(2)

    async with serving(tmp_path, handle) as (_, _, port), connected(port) as peer:
        for correlation_id in range(3):
            peer.send(HeartbeatRequest(member_id=f"m{correlation_id}"), correlation_id, 1)
        await peer.writer.drain()
        await loop_turns()
        assert seen == []
        gate.set()
        assert [(await peer.answer(HEARTBEAT, 1))[0] for _ in range(3)] == [0, 1, 2]
        assert seen == ["m0", "m1", "m2"]


async def test_a_request_without_an_answer_holds_nobody_up(tmp_path: Path) -> None:
    def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
        return None if header.correlation_id == 0 else beat(0)

    async with serving(tmp_path, handle) as (_, _, port), connected(port) as peer:
        peer.send(HeartbeatRequest(), 0, 1)
        peer.send(HeartbeatRequest(), 1, 1)
        assert (await peer.answer(HEARTBEAT, 1))[0] == 1


async def test_a_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    handled = 0

    def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
        nonlocal handled
        handled += 1
        return SyncGroupResponse(assignment=bytes(100_000))

    async with serving(tmp_path, handle) as (_, _, port), connected(port) as peer:
        for correlation_id in range(500):
            peer.send(HeartbeatRequest(), correlation_id, 1)
        before = -1
        while before != handled or not handled:
            before = handled
            await loop_turns()
        assert 0 < handled < 400, "what the sockets hold, and little more"
        for correlation_id in range(500):
            assert (await peer.answer(SYNC, 1))[0] == correlation_id
        assert handled == 500


async def test_at_most_so_many_requests_are_under_way(tmp_path: Path) -> None:
    later: list[asyncio.Future[Any]] = []
    few = replace(SETTINGS, queued_max_requests=4)
    serve = serving(tmp_path, later_answers(later), few)
    async with serve as (_, _, port), connected(port) as peer:
        for correlation_id in range(20):
            peer.send(HeartbeatRequest(), correlation_id, 1)
        await peer.writer.drain()
        await until(lambda: len(later) == 4)
        await loop_turns()  # more would come now
        assert len(later) == 4
        for index in range(20):
            later[index].set_result(beat(0))
            assert (await peer.answer(HEARTBEAT, 1))[0] == index
            assert len(later) <= index + 5


async def test_a_fetch_is_answered_before_the_next_request_is_looked_at(tmp_path: Path) -> None:
    """Many fetches that wait could be answered at once, each with 55 MiB."""

    fetches: list[asyncio.Future[Any]] = []
    serve = serving(tmp_path, later_answers(fetches), api_key=FETCH)
    async with serve as (_, server, port), connected(port) as peer:
        for correlation_id in range(9):
            peer.send(FetchRequest(), correlation_id, 11)
        peer.send(ApiVersionsRequest(), 9, 0)
        for index in range(9):
            while len(fetches) == index:
                await asyncio.sleep(0)
            await loop_turns()
            assert len(fetches) == index + 1
            fetches[-1].set_result(FetchResponse())
            assert (await peer.answer(FETCH, 11))[0] == index
        assert (await peer.answer(API_VERSIONS, 0))[0] == 9
        assert server.stats.requests[FETCH] == 9


async def test_a_fetch_alone_is_counted_as_a_fetch_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counters_of() -> tuple[dict[int, int], int, int, int, bool]:
        fetches: list[asyncio.Future[Any]] = []
        serve = serving(tmp_path, later_answers(fetches), api_key=FETCH)
        async with serve as (_, server, port), connected(port) as peer:
            for index in range(4):
                peer.send(FetchRequest(), index, 11)
                await until(lambda: len(fetches) > index)  # noqa: B023 - called in this iteration
                if index < 3:
                    fetches[index].set_result(FetchResponse())
                    assert (await peer.answer(FETCH, 11))[0] == index
            fetches[3].set_exception(RuntimeError("planted"))
            assert await peer.is_closed()
            stats, fetch = server.stats, server.stats.apis[FETCH]
            timed = sum(fetch.counts)
            return stats.requests, stats.bytes_out, timed, fetch.unanswered, fetch.total_s > 0

    def among_others(connection: Connection, _answer: object) -> None:
        connection._answered()
        connection._flush()

    alone = await counters_of()
    assert (alone[0], alone[2:]) == ({FETCH: 4}, (3, 1, True))
    monkeypatch.setattr(Connection, "_fetched", among_others)
    assert await counters_of() == alone


async def test_a_handler_that_fails_ends_its_connection_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails_later() -> HeartbeatResponse:
        raise RuntimeError("later")

    def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
        match header.correlation_id:
            case 0:
                raise RuntimeError("at once")
            case 1:
                return fails_later()
            case _:
                return HeartbeatResponse(error_code="not a number")  # type: ignore[arg-type]

    async with serving(tmp_path, handle) as (_, _, port):
        for correlation_id in range(3):
            async with connected(port) as peer:
                peer.send(HeartbeatRequest(), correlation_id, 1)
                assert await peer.is_closed()
    assert len([record for record in caplog.records if "failed" in record.message]) == 3
    assert all(record.exc_info for record in caplog.records)


async def test_handlers_may_disconnect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
        if header.correlation_id:
            raise Disconnect("no answer could say it")
        return beat(7)

    with caplog.at_level(logging.WARNING):
        async with serving(tmp_path, handle) as (_, _, port), connected(port) as peer:
            for correlation_id in range(3):
                peer.send(HeartbeatRequest(), correlation_id, 1)
            assert (await peer.answer(HEARTBEAT, 1))[0] == 0
            assert await peer.is_closed()
    [line] = caplog.messages
    assert line.endswith("closed: no answer could say it")


async def test_a_bug_of_ours_is_reported_to_the_node(tmp_path: Path) -> None:
    def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
        raise InvariantViolation("planted")

    async with serving(tmp_path, handle) as (broker, _, port), connected(port) as peer:
        peer.send(HeartbeatRequest(), 0, 1)
        await until(lambda: broker.violations)
        assert str(broker.violations.pop()) == "planted"


async def test_there_is_a_limit_of_connections_and_of_idleness(tmp_path: Path) -> None:
    few = replace(SETTINGS, max_connections=1, connections_max_idle_ms=100)
    async with serving(tmp_path, None, few) as (_, server, port), connected(port) as first:
        first.send(ApiVersionsRequest(), 1, 0)
        await first.answer(API_VERSIONS, 0)
        async with connected(port) as second:
            with suppress(ConnectionResetError):
                assert await second.is_closed()
        assert server.stats.connections_refused == 1
        assert await first.is_closed()
        assert server.stats.connections_idle == 1


async def test_the_limit_of_connections_may_be_altered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, server, port), connected(port) as first:
        first.send(ApiVersionsRequest(), 1, 0)
        await first.answer(API_VERSIONS, 0)
        few = {"": {"max.connections": "1"}}
        delta = ClusterDelta(broker_configs=frozenset(few))
        altered = replace(broker.replicas.image, broker_configs=few)
        broker.replicas.publish(delta, altered)
        async with connected(port) as second:
            with suppress(ConnectionResetError):
                assert await second.is_closed()
        assert server.stats.connections_refused == 1
        broker.replicas.publish(delta, replace(altered, broker_configs={}))
        async with connected(port) as second:
            second.send(ApiVersionsRequest(), 1, 0)
            await second.answer(API_VERSIONS, 0)


async def test_what_passes_is_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server, port), connected(port) as peer:
        peer.send(ApiVersionsRequest(), 1, 0)
        frame = await peer.frame()
        peer.send(MetadataRequest(topics=None), 2, 5)
        frame += await peer.frame()
        assert server.stats.requests == {API_VERSIONS: 1, METADATA: 1}
        assert server.stats.bytes_out == len(frame) + 8
        assert server.stats.bytes_in > 0
        assert len(server._connections) == 1


async def test_a_stop_lets_what_is_under_way_end(tmp_path: Path) -> None:
    later: list[asyncio.Future[Any]] = []
    serve = serving(tmp_path, later_answers(later))
    async with serve as (_, server, port), connected(port) as peer:
        peer.send(HeartbeatRequest(), 3, 1)
        await until(lambda: later)
        asyncio.get_running_loop().call_later(0.02, later[0].set_result, beat(7))
        await server.stop(grace_ms=2000)
        assert (await peer.answer(HEARTBEAT, 1))[0] == 3
        assert await peer.is_closed()


PEERS, REQUESTS = 5, 8


class CountedTurns:
    """How many turns of the loop there were."""

    def __init__(self) -> None:
        self.count = 0
        self._resume()

    def _resume(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._resume)

    def stop(self) -> None:
        self._handle.cancel()


async def test_requests_that_take_long_leave_turns_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []

    def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
        del context
        seen.append((counted.count, request.member_id))
        return beat(header.correlation_id)

    async with AsyncExitStack() as stack:
        _, _, port = await stack.enter_async_context(serving(tmp_path, handle))
        peers = [await stack.enter_async_context(connected(port)) for _ in range(PEERS)]
        monkeypatch.setattr(turns, "TURN_S", 0.0)  # every request takes longer than a turn
        counted = CountedTurns()
        for number, peer in enumerate(peers):
            for correlation_id in range(REQUESTS):
                peer.send(HeartbeatRequest(member_id=f"m{number}"), correlation_id, 1)
        answers = [[await peer.answer(HEARTBEAT, 1) for _ in range(REQUESTS)] for peer in peers]
        counted.stop()
    for of_peer in answers:
        assert [correlation_id for correlation_id, _ in of_peer] == [*range(REQUESTS)]
    assert len({turn for turn, _ in seen}) == len(seen) == PEERS * REQUESTS
    assert {name for _, name in seen[:PEERS]} == {f"m{number}" for number in range(PEERS)}


async def test_a_client_that_goes_while_it_waits_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, lambda *_: beat(1)) as (broker, _, port):
        monkeypatch.setattr(turns, "TURN_S", 0.0)
        async with connected(port) as peer:
            for correlation_id in range(50):
                peer.send(HeartbeatRequest(), correlation_id, 1)
            assert (await peer.answer(HEARTBEAT, 1))[0] == 0
        async with connected(port) as peer:
            peer.send(HeartbeatRequest(), 7, 1)
            assert (await peer.answer(HEARTBEAT, 1))[0] == 7
        assert broker.violations == []


async def test_what_waits_goes_on_in_order_and_one_at_least_in_a_turn() -> None:
    line, called = Turns(), list[int]()
    now_s = asyncio.get_running_loop().time()
    assert not line.is_over(now_s)
    assert line.is_over(now_s + turns.TURN_S)
    for number in range(3):
        line.wait(lambda number=number: called.append(number))  # type: ignore[misc]
    assert called == []
    await loop_turns(2)
    assert called == [0, 1, 2]

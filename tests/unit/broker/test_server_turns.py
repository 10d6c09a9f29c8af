"""Requests of many connections share the event loop with everything else of a broker."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quorumlog.broker.server import turns
from quorumlog.broker.server.api import BrokerContext, Reply
from quorumlog.broker.server.turns import Turns
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest
from quorumlog.wire.codec.schemas import RequestHeader
from tests.support.broker.peer import HEARTBEAT, beat, connected, serving
from tests.support.waiting import loop_turns

PEERS, REQUESTS = 5, 8


class CountedTurns:
    """How many turns of the loop there were."""

    def __init__(self) -> None:
        self.count = 0
        self._go_on()

    def _go_on(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._go_on)

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

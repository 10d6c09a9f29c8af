"""A client's connection after a response with a throttle time (KIP-219)."""

import asyncio

import pytest

from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.schemas import encode_response
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection
from tests.support.wire.scripted_broker import connected


def sending(
    connection: KafkaConnection, generation: int = 0, timeout_ms: float | None = None
) -> "asyncio.Task[HeartbeatResponse]":
    request = HeartbeatRequest(generation_id=generation)
    return asyncio.create_task(connection.send(request, timeout_ms=timeout_ms))


async def test_nothing_is_sent_for_the_throttle_time_and_nothing_times_out() -> None:
    """The broker does not read meanwhile; the time-outs of the requests begin later."""
    loop = asyncio.get_running_loop()
    async with connected() as (broker, connection):
        first, pipelined = sending(connection), sending(connection, 1, timeout_ms=200)
        header, _ = await broker.requests.get()
        delayed = HeartbeatResponse(throttle_time_ms=300)
        broker.writer.writelines(encode_response(header, delayed))
        await first
        held_s = loop.time()
        later = sending(connection, 2, timeout_ms=200)
        header, _ = await broker.requests.get()  # it was sent before
        done, _ = await asyncio.wait({later, pipelined}, timeout=0.25)
        assert not done
        assert broker.requests.empty()
        broker.writer.writelines(encode_response(header, HeartbeatResponse()))
        await pipelined
        header, request = await broker.requests.get()
        assert loop.time() - held_s > 0.299
        assert request.generation_id == 2
        broker.writer.writelines(encode_response(header, HeartbeatResponse()))
        await later


async def test_a_throttled_connection_that_is_closed_leaves_no_timer() -> None:
    async with connected() as (broker, connection):
        asked = sending(connection)
        await broker.answer(HeartbeatResponse(throttle_time_ms=60_000))
        await asked
        waiting = sending(connection)
        await asyncio.sleep(0)
        await connection.close()
        with pytest.raises(ConnectionLost):
            await waiting
        assert connection._throttled is None

"""However a connection ends, whoever waits is told, and nothing is left open."""

import asyncio
from typing import Any

import pytest

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.schemas import RequestHeader, encode_response
from quorumlog.wire.io import frames
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection, RequestTimedOut
from tests.support.wire.scripted_broker import Broker, connected, run

ANSWER = HeartbeatResponse(error_code=5)


def stop_reading(broker: Broker) -> None:
    reading = broker.writer.transport
    assert isinstance(reading, asyncio.ReadTransport)
    reading.pause_reading()


def send_more_than_a_socket_takes(connection: KafkaConnection) -> None:
    for _ in range(400):
        connection.send_no_reply(HeartbeatRequest(group_id="g" * 30_000))


async def test_a_close_that_is_cancelled_leaves_no_connection() -> None:
    async with connected() as (broker, connection):
        stop_reading(broker)
        send_more_than_a_socket_takes(connection)
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        await connection.closed
        broker.writer.transport.abort()


@pytest.mark.parametrize("never_pauses", [True, False])
async def test_waiting_for_a_broker_that_takes_nothing_has_an_end(
    monkeypatch: pytest.MonkeyPatch, never_pauses: bool
) -> None:
    """On the Pythons of CVE-2024-12254 too: what is done there works everywhere."""
    if never_pauses:
        monkeypatch.setattr(frames, "WRITELINES_NEVER_PAUSES", never_pauses)

    async with connected(request_timeout_ms=300) as (broker, connection):
        stop_reading(broker)
        send_more_than_a_socket_takes(connection)
        waiting = asyncio.create_task(connection.send(HeartbeatRequest(), timeout_ms=60_000))
        with pytest.raises(RequestTimedOut, match="does not read"):
            await connection.drain()
        with pytest.raises(ConnectionLost):
            await waiting
        assert isinstance(await connection.closed, RequestTimedOut)
        broker.writer.transport.abort()


async def test_half_an_answer_and_then_silence_is_no_answer_in_time() -> None:
    async with connected() as (broker, connection):
        asked = asyncio.create_task(connection.send(HeartbeatRequest(), timeout_ms=40))
        header, _ = await broker.requests.get()
        broker.writer.write(b"".join(encode_response(header, ANSWER))[:9])
        with pytest.raises(RequestTimedOut):
            await asked
        assert isinstance(await connection.closed, RequestTimedOut)


def test_an_end_at_any_byte_of_an_answer_is_a_lost_connection() -> None:
    size = len(b"".join(encode_response(RequestHeader(12, 3, 2, None), ANSWER)))
    for cut in range(size):

        async def scenario(broker: Broker, connection: KafkaConnection, cut: int = cut) -> None:
            asked = asyncio.create_task(connection.send(HeartbeatRequest()))
            header, _ = await broker.requests.get()
            broker.writer.write(b"".join(encode_response(header, ANSWER))[:cut])
            broker.writer.close()
            with pytest.raises(ConnectionLost):
                await asked

        run(scenario)


async def test_answers_in_the_wrong_order_reach_nobody() -> None:
    async with connected() as (broker, connection):
        tasks = [asyncio.create_task(connection.send(HeartbeatRequest())) for _ in range(2)]
        headers = [(await broker.requests.get())[0] for _ in tasks]
        for header in reversed(headers):
            broker.writer.writelines(encode_response(header, ANSWER))
        for task in tasks:
            with pytest.raises(ConnectionLost, match="the answer to"):
                await task
        assert isinstance(await connection.closed, MalformedFrame)


def test_a_sender_that_is_cancelled_at_any_turn_of_the_loop_harms_nobody() -> None:
    for turns in range(8):

        async def scenario(broker: Broker, connection: KafkaConnection, turns: int = turns) -> None:
            first = asyncio.create_task(connection.send(HeartbeatRequest(generation_id=1)))
            second = asyncio.create_task(connection.send(HeartbeatRequest(generation_id=2)))
            third = asyncio.create_task(connection.send(HeartbeatRequest(generation_id=3)))
            for _ in range(turns):
                await asyncio.sleep(0)
            second.cancel()
            seen = []
            while not third.done():
                header, request = await broker.requests.get()
                seen.append(request.generation_id)
                broker.writer.writelines(encode_response(header, ANSWER))
                await asyncio.wait([third], timeout=0 if request.generation_id < 3 else None)
            assert (await first, await third) == (ANSWER, ANSWER)
            assert second.cancelled()
            assert [one for one in seen if one != 2] == [1, 3]

        run(scenario, in_flight_max=1)


async def test_an_opening_that_is_cancelled_at_any_turn_of_the_loop_leaves_nothing() -> None:
    async with connected() as (_broker, connection):
        host, port = connection._protocol.transport.get_extra_info("peername")
        opened = 0
        for turns in range(30):
            opening = asyncio.create_task(KafkaConnection.open(host, port, client_id="you"))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled():
                opened += 1
                await opening.result().close()
        assert opened < 30


@pytest.mark.parametrize(
    ("host", "port"),
    [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("a" * 70, 9092), ("a\0b", 9092), ("é..", 9092)],
)
async def test_an_address_that_cannot_be_is_a_lost_connection(host: str, port: int) -> None:
    with pytest.raises(ConnectionLost):
        await KafkaConnection.open(host, port, client_id=None)


async def test_a_broker_of_another_age_is_a_lost_connection() -> None:
    broker = Broker()

    def answer(header: RequestHeader) -> list[Any]:
        known = [ApiVersion(api_key=18, min_version=90, max_version=99)]
        refusal = ApiVersionsResponse(error_code=35, api_keys=known)
        return encode_response(header._replace(api_version=0), refusal)

    broker.answer_versions = answer
    with pytest.raises(ConnectionLost, match="no version of ApiVersions"):
        async with connected(broker) as (_, _connection):
            raise AssertionError("it opened")

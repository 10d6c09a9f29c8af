"""A client's connection: answers reach their requests; timeouts, limits, versions, and its end."""

import asyncio
import struct
from typing import Any

import pytest

from quorumlog.wire.codec.errors import MalformedFrame, UnencodableMessage
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest
from quorumlog.wire.codec.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.messages.metadata import MetadataRequest
from quorumlog.wire.codec.schemas import RequestHeader, encode_response
from quorumlog.wire.io import connection as connection_module
from quorumlog.wire.io import frames
from quorumlog.wire.io.connection import (
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
    UnsupportedVersion,
)
from tests.support.wire.scripted_broker import Broker, connected, run

ANSWER = HeartbeatResponse(error_code=5)


def sending(connection: KafkaConnection, generation: int = 0, **how: Any) -> "asyncio.Task[Any]":
    """A heartbeat that is on its way."""
    return asyncio.create_task(connection.send(HeartbeatRequest(generation_id=generation), **how))


def respond(broker: Broker, header: RequestHeader, answer: HeartbeatResponse = ANSWER) -> None:
    broker.writer.writelines(encode_response(header, answer))


async def test_an_answer_reaches_who_asked() -> None:
    async with connected() as (broker, connection):
        asked = asyncio.create_task(connection.send(HeartbeatRequest(group_id="g")))
        header, request = await broker.requests.get()
        assert (header.api_version, header.client_id) == (3, "me")
        assert request.group_id == "g"
        respond(broker, header)
        assert await asked == ANSWER
        assert connection.api_versions[12] == range(4)


async def test_a_request_that_was_answered_times_out_no_more() -> None:
    async with connected() as (broker, connection):
        asked = sending(connection, timeout_ms=200)
        await broker.answer(HeartbeatResponse())
        await asked
        closed, _ = await asyncio.wait([connection.closed], timeout=0.25)
        assert not closed


async def test_an_answer_may_arrive_byte_by_byte() -> None:
    async with connected() as (broker, connection):
        asked = sending(connection)
        header, _ = await broker.requests.get()
        for byte in b"".join(encode_response(header, ANSWER)):
            broker.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await asked == ANSWER


async def test_an_answer_keeps_its_bytes_when_others_follow() -> None:
    """The socket is read into one buffer: the records of an answer are not a part of it."""

    def records(filler: bytes) -> FetchResponse:
        data = PartitionData(partition_index=0, records=filler * 50_000)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

    async with connected() as (broker, connection):
        answers = []
        for filler in (b"a", b"b", b"c"):
            asked = asyncio.create_task(connection.send(FetchRequest(), version=12))
            await broker.answer(records(filler))
            answers.append(await asked)
        seen = [answer.responses[0].partitions[0].records for answer in answers]
        assert seen == [b"a" * 50_000, b"b" * 50_000, b"c" * 50_000]


async def test_no_more_than_the_limit_is_in_flight_and_the_order_is_kept() -> None:
    async with connected(in_flight_max=2) as (broker, connection):
        tasks = [sending(connection, number) for number in range(6)]
        for number in range(6):
            header, request = await broker.requests.get()
            assert request.generation_id == number
            assert connection.in_flight == min(2, 6 - number)
            assert broker.requests.qsize() <= 1
            respond(broker, header, HeartbeatResponse(error_code=number))
            assert (await tasks[number]).error_code == number


async def test_the_oldest_request_without_a_response_counts_from_when_it_was_sent() -> None:
    async with connected(in_flight_max=2) as (broker, connection):
        assert connection.waits_since_s is None
        sent_s, outcomes = asyncio.get_running_loop().time(), list[Any]()
        connection.request(HeartbeatRequest(), outcomes.append)
        assert connection.waits_since_s == pytest.approx(sent_s, abs=0.2)
        await asyncio.sleep(0.01)
        connection.request(HeartbeatRequest(), outcomes.append)
        first_s = connection.waits_since_s
        await broker.answer(HeartbeatResponse())
        while not outcomes:
            await asyncio.sleep(0)
        assert first_s is not None
        assert connection.waits_since_s is not None
        assert connection.waits_since_s >= first_s + 0.009
        await broker.answer(HeartbeatResponse())
        while len(outcomes) < 2:
            await asyncio.sleep(0)
        assert connection.waits_since_s is None


async def test_a_request_that_times_out_closes_the_connection() -> None:
    async with connected() as (_broker, connection):
        other = sending(connection)
        with pytest.raises(RequestTimedOut):
            await connection.send(HeartbeatRequest(), timeout_ms=20)
        with pytest.raises(ConnectionLost):
            await other
        assert isinstance(await connection.closed, RequestTimedOut)
        with pytest.raises(ConnectionLost):
            await connection.send(HeartbeatRequest())


async def test_a_callback_receives_each_outcome_once() -> None:
    outcomes: list[object] = []
    async with connected() as (broker, connection):
        for _ in range(2):
            connection.request(HeartbeatRequest(), outcomes.append)
        await broker.answer(ANSWER)
        while not outcomes:
            await asyncio.sleep(0)
        assert outcomes == [ANSWER]
        connection.request(HeartbeatRequest(), outcomes.append)
        await connection.close()
        assert [type(outcome) for outcome in outcomes[1:]] == [ConnectionLost, ConnectionLost]
        with pytest.raises(ConnectionLost):
            connection.request(HeartbeatRequest(), outcomes.append)
    assert len(outcomes) == 3


async def test_a_callback_gets_records_without_a_copy() -> None:
    """They are a view into the buffer of the socket, which the callback has to copy or to use."""
    found: list[tuple[type, bytes]] = []

    def received(outcome: Any) -> None:
        records = outcome.responses[0].partitions[0].records
        found.append((type(records), bytes(records)))

    data = PartitionData(partition_index=0, records=b"a" * 50_000)
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])
    async with connected() as (broker, connection):
        connection.request(FetchRequest(), received)
        await broker.answer(response)
        while not found:
            await asyncio.sleep(0)
    assert found == [(memoryview, b"a" * 50_000)]


async def test_a_callback_may_send_the_next_request() -> None:
    answers: list[object] = []
    async with connected(in_flight_max=1) as (broker, connection):

        def ask_again(outcome: object) -> None:
            answers.append(outcome)
            if len(answers) < 3:
                connection.request(HeartbeatRequest(), ask_again)

        connection.request(HeartbeatRequest(), ask_again)
        waiting = sending(connection)
        for _ in range(4):
            await broker.answer(ANSWER)
        assert await waiting == ANSWER
        while len(answers) < 3:
            await asyncio.sleep(0)
    assert answers == [ANSWER] * 3


async def test_a_timeout_reaches_a_callback_once_and_before_the_timer_of_others() -> None:
    outcomes: list[object] = []
    async with connected() as (broker, connection):
        connection.request(HeartbeatRequest(), outcomes.append)
        await broker.answer(ANSWER)
        while not outcomes:
            await asyncio.sleep(0)
        assert connection._timer is not None  # it would ring without a request, in half a minute
        connection._request_timeout_ms = 10  # type: ignore[misc]
        connection.request(HeartbeatRequest(), outcomes.append)
        assert isinstance(await connection.closed, RequestTimedOut)
        assert connection._timer is None
    assert [type(outcome) for outcome in outcomes] == [HeartbeatResponse, RequestTimedOut]


async def test_a_request_that_times_out_before_it_is_sent_harms_nobody() -> None:
    async with connected(in_flight_max=1) as (broker, connection):
        first = sending(connection)
        await asyncio.sleep(0)  # it goes first
        with pytest.raises(RequestTimedOut):
            await connection.send(HeartbeatRequest(), timeout_ms=10)
        await broker.answer(ANSWER)
        assert await first == ANSWER
        assert broker.requests.empty()


async def test_a_caller_that_is_cancelled_leaves_the_line_in_order() -> None:
    async with connected(in_flight_max=1) as (broker, connection):
        tasks = [sending(connection, number) for number in range(3)]
        header, _ = await broker.requests.get()
        tasks[0].cancel()  # sent: its answer comes and is dropped
        tasks[1].cancel()  # not sent: it never is
        await asyncio.wait(tasks[:2])
        respond(broker, header, HeartbeatResponse(error_code=1))
        header, request = await broker.requests.get()
        assert request.generation_id == 2
        respond(broker, header)
        assert await tasks[2] == ANSWER


async def test_a_lost_connection_fails_all_who_wait() -> None:
    async with connected(in_flight_max=2) as (broker, connection):
        tasks = [sending(connection) for _ in range(3)]
        await broker.requests.get()
        broker.writer.close()
        for task in tasks:
            with pytest.raises(ConnectionLost):
                await task
        await connection.closed


@pytest.mark.parametrize(
    "bytes_sent",
    [
        struct.pack(">iiihb", 11, 999, 0, 0, 0),  # another correlation id
        struct.pack(">i", -5),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 2) + b"ab",
    ],
)
async def test_what_cannot_be_an_answer_closes_the_connection(bytes_sent: bytes) -> None:
    async with connected() as (broker, connection):
        asked = sending(connection)
        await broker.requests.get()
        broker.writer.write(bytes_sent)
        with pytest.raises(ConnectionLost):
            await asked
        assert isinstance(await connection.closed, MalformedFrame)


async def test_an_answer_to_nothing_closes_the_connection() -> None:
    async with connected() as (broker, connection):
        broker.writer.write(struct.pack(">ii", 4, 7))
        assert isinstance(await connection.closed, MalformedFrame)


async def test_what_cannot_be_sent_is_not_and_the_connection_lives() -> None:
    async with connected() as (broker, connection):
        with pytest.raises(UnsupportedVersion):
            await connection.send(EndTxnRequest())
        with pytest.raises(UnsupportedVersion):
            await connection.send(HeartbeatRequest(), version=99)
        with pytest.raises(UnencodableMessage):
            await connection.send(HeartbeatRequest(generation_id=2**40))
        connection.send_no_reply(MetadataRequest(topics=None))
        await connection.drain()
        header, request = await broker.requests.get()
        assert (header.api_version, request.topics) == (12, None)
        asked = asyncio.create_task(connection.send(HeartbeatRequest(), version=2))
        header, _ = await broker.requests.get()
        assert header.api_version == 2
        broker.writer.writelines(encode_response(header, HeartbeatResponse(error_code=3)))
        assert (await asked).error_code == 3


def refuse(header: RequestHeader, *known: tuple[int, int]) -> list[Any]:
    """The answer of a broker that has only these versions of ApiVersions."""
    listed = [ApiVersion(api_key=18, min_version=low, max_version=high) for low, high in known]
    refusal = ApiVersionsResponse(error_code=35, api_keys=listed)
    return encode_response(header._replace(api_version=0), refusal)


@pytest.mark.parametrize("listed", [True, False])
async def test_a_broker_that_knows_less_is_asked_again(listed: bool) -> None:
    broker = Broker()
    version = 2 if listed else 0

    def answer(header: RequestHeader) -> list[Any]:
        if header.api_version == version:
            return broker.all_versions(header)
        return refuse(header, *([(0, 2)] if listed else []))

    broker.answer_versions = answer
    async with connected(broker) as (_, connection):
        assert broker.versions_seen == [ApiVersionsRequest.VERSIONS[-1], version]
        assert connection.api_versions[3] == range(13)


async def test_what_was_written_is_sent_before_the_end() -> None:
    broker = Broker()

    async with connected(broker) as (_, connection):
        for number in range(20):
            connection.send_no_reply(HeartbeatRequest(group_id="g" * 30_000, generation_id=number))
    assert broker.requests.qsize() == 20


def stop_reading(broker: Broker, connection: KafkaConnection) -> None:
    """Let the broker read no more, and send it more than a socket takes."""
    reading = broker.writer.transport
    assert isinstance(reading, asyncio.ReadTransport)
    reading.pause_reading()
    for _ in range(400):
        connection.send_no_reply(HeartbeatRequest(group_id="g" * 30_000))


async def test_a_broker_that_takes_nothing_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "CLOSE_TIMEOUT_MS", 10)
    async with connected() as (broker, connection):
        stop_reading(broker, connection)
        await connection.close()
        assert connection.closed.done()
        broker.writer.transport.abort()


async def test_nobody_listens() -> None:
    server = await asyncio.start_server(Broker().serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionLost):
        await KafkaConnection.open("127.0.0.1", port, client_id=None)


async def test_somebody_listens_and_says_nothing() -> None:
    broker = Broker()
    broker.answer_versions = lambda header: []

    with pytest.raises(RequestTimedOut):
        async with connected(broker, request_timeout_ms=200) as (_, _connection):
            raise AssertionError("it opened")


# --- however a connection ends, whoever waits has an error, and nothing is left open ---


async def test_a_close_that_is_cancelled_leaves_no_connection() -> None:
    async with connected() as (broker, connection):
        stop_reading(broker, connection)
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
        stop_reading(broker, connection)
        waiting = sending(connection, timeout_ms=60_000)
        with pytest.raises(RequestTimedOut, match="does not read"):
            await connection.drain()
        with pytest.raises(ConnectionLost):
            await waiting
        assert isinstance(await connection.closed, RequestTimedOut)
        broker.writer.transport.abort()


async def test_half_an_answer_and_then_silence_is_no_answer_in_time() -> None:
    async with connected() as (broker, connection):
        asked = sending(connection, timeout_ms=200)
        header, _ = await broker.requests.get()
        broker.writer.write(b"".join(encode_response(header, ANSWER))[:9])
        with pytest.raises(RequestTimedOut):
            await asked
        assert isinstance(await connection.closed, RequestTimedOut)


def test_an_end_at_any_byte_of_an_answer_is_a_lost_connection() -> None:
    size = len(b"".join(encode_response(RequestHeader(12, 3, 2, None), ANSWER)))
    for cut in range(size):

        async def scenario(broker: Broker, connection: KafkaConnection, cut: int = cut) -> None:
            asked = sending(connection)
            header, _ = await broker.requests.get()
            broker.writer.write(b"".join(encode_response(header, ANSWER))[:cut])
            broker.writer.close()
            with pytest.raises(ConnectionLost):
                await asked

        run(scenario)


async def test_answers_in_the_wrong_order_reach_nobody() -> None:
    async with connected() as (broker, connection):
        tasks = [sending(connection) for _ in range(2)]
        headers = [(await broker.requests.get())[0] for _ in tasks]
        for header in reversed(headers):
            respond(broker, header)
        for task in tasks:
            with pytest.raises(ConnectionLost, match="the answer to"):
                await task
        assert isinstance(await connection.closed, MalformedFrame)


def test_a_sender_that_is_cancelled_at_any_turn_of_the_loop_harms_nobody() -> None:
    for turns in range(8):

        async def scenario(broker: Broker, connection: KafkaConnection, turns: int = turns) -> None:
            first = sending(connection, 1)
            second = sending(connection, 2)
            third = sending(connection, 3)
            for _ in range(turns):
                await asyncio.sleep(0)
            second.cancel()
            seen = []
            while not third.done():
                header, request = await broker.requests.get()
                seen.append(request.generation_id)
                respond(broker, header)
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
    broker.answer_versions = lambda header: refuse(header, (90, 99))
    with pytest.raises(ConnectionLost, match="no version of ApiVersions"):
        async with connected(broker) as (_, _connection):
            raise AssertionError("it opened")

"""A client that finds no broker says what it met instead."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from quorumlog.client import Admin, ErrorCode, KafkaError
from quorumlog.client.io.causes import why_unreachable
from quorumlog.wire.io.connection import ConnectionLost
from tests.unit.client.fake_cluster import fake_cluster

TLS_ALERT = bytes.fromhex("15030300020246")
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def complaint(address: str, timeout_ms: int = 100) -> str:
    admin = Admin(address, socket_connection_setup_timeout_ms=timeout_ms)
    with pytest.raises(KafkaError) as caught:
        await admin.start()
    assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE
    assert caught.value.definite
    return caught.value.message


def answering(data: bytes | None) -> Answer:
    """Send `data` and close; None: keep silent until the client hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        if data is None:
            await reader.read()
        else:
            writer.write(data)
            await writer.drain()
        writer.close()

    return answer


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer speaks HTTP"),
        (TLS_ALERT, "the peer speaks TLS"),
        (b"\x7f\xff\xff\xffnonsense", "not Kafka's protocol: a frame of 2147483647 bytes"),
        (b"", "without an answer .it is no Kafka broker, wants TLS, or is stopping"),
        (None, "no answer in time"),
    ],
)
def test_what_is_no_broker_is_told_by_its_answer(data: bytes | None, cause: str) -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(answering(data), "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()[:2]
            # A broker may think for a second before it counts as silent.
            message = await complaint(f"{host}:{port}", 1_500 if data is None else 300)
        limit = 1_500 if data is None else 300
        assert f"within socket_connection_setup_timeout_ms={limit}: {host}:{port}: " in message
        assert cause.replace(".it", "(it") in message

    asyncio.run(scenario())


def test_nobody_listens_there() -> None:
    with socket.socket() as taken:  # bound, and not listening: refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        message = asyncio.run(complaint(f"127.0.0.1:{port}"))
    assert f"127.0.0.1:{port}: connection refused: no process listens there" in message


def test_a_host_of_several_addresses_that_all_refuse() -> None:
    lost = ConnectionLost("h:1")
    text = "[Errno 111] Connect call failed ('::1'), [Errno 111] Connect call failed ('127.0.0.1')"
    lost.__cause__ = OSError(f"Multiple exceptions: {text}")
    assert why_unreachable(lost).startswith("connection refused")
    lost.__cause__ = OSError(f"Multiple exceptions: {text}, [Errno 101] Network is unreachable")
    assert "Network is unreachable" in why_unreachable(lost)


def test_an_unknown_host_name() -> None:
    lost = ConnectionLost("nowhere.invalid:9092")
    lost.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert why_unreachable(lost) == "the host name is not known"


def test_a_broker_that_died_since_is_named_with_its_cause() -> None:
    async def scenario() -> None:
        async with (
            fake_cluster() as cluster,
            Admin(cluster.bootstrap, default_api_timeout_ms=300) as admin,
        ):
            for broker in (1, 2):
                await cluster.kill(broker)
            with pytest.raises(KafkaError, match="connection refused: no process listens"):
                await admin.list_topics()

    asyncio.run(scenario())

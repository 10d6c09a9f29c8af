"""A client that finds no broker says what it met instead."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from quorumlog.client import Admin, ErrorCode, KafkaError
from quorumlog.client.io.metadata_source import MetadataSource
from quorumlog.client.io.unreachable import why_unreachable
from quorumlog.client.settings import AdminSettings
from quorumlog.wire.codec.messages.metadata import MetadataRequest
from quorumlog.wire.io.connection import ConnectionLost
from tests.support.client.fake_cluster import fake_cluster

TLS_ALERT = bytes.fromhex("15030300020246")
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(data: bytes | None, ended: asyncio.Event) -> Answer:
    """Send `data` and close; None: keep silent until the client hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        if data is None:
            await reader.read()
        else:
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.set()

    return answer


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer speaks HTTP"),
        (TLS_ALERT, "the peer speaks TLS"),
        (b"\x7f\xff\xff\xffnonsense", "not Kafka's protocol: a frame of 2147483647 bytes"),
        (b"", "without a response (no Kafka broker, requires TLS, or is stopping"),
        (None, "no answer in time"),
    ],
)
async def test_what_is_no_broker_is_told_by_its_answer(data: bytes | None, cause: str) -> None:
    ended = asyncio.Event()
    server = await asyncio.start_server(answering(data, ended), "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        settings = AdminSettings(bootstrap_servers=f"{host}:{port}")
        source = MetadataSource(settings, lambda: [])
        assert await source.ask(MetadataRequest(topics=[])) is None
        await ended.wait()
    assert source.why_silent().startswith(f"{host}:{port}: ")
    assert cause in source.why_silent()


async def test_a_start_that_fails_names_the_setting_the_address_and_the_cause() -> None:
    async def scenario(address: str) -> str:
        admin = Admin(address, socket_connection_setup_timeout_ms=2_000)
        with pytest.raises(KafkaError) as caught:
            await admin.start()
        assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE
        assert caught.value.definite
        return caught.value.message

    with socket.socket() as taken:  # bound, and not listening: refused
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = await scenario(address)
    assert message == (
        "no broker of bootstrap_servers answered within socket_connection_setup_timeout_ms=2000:"
        f" {address}: connection refused: no process listens there"
    )


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
    assert why_unreachable(lost) == "unknown host name"


async def test_a_broker_that_died_since_is_named_with_its_cause() -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Admin(cluster.bootstrap) as admin,
    ):
        for broker in (1, 2):
            await cluster.kill(broker)
        said = ""
        while "connection refused: no process listens there" not in said:
            with pytest.raises(KafkaError) as caught:
                await admin.request(MetadataRequest(topics=[]))
            said = caught.value.message
        assert said.startswith("no broker can be reached: 127.0.0.1:")

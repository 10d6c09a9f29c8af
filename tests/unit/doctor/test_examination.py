"""The examination of addresses: brokers in this process, and servers of other protocols."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.doctor import Examination, examination, examine, probes
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.broker.requests import lose_controller
from tests.support.groups.single_broker import BROKER, SingleBroker, single_broker

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HOST = "127.0.0.1"


@asynccontextmanager
async def server(serve: Serve, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve on a free port, and yield the port."""
    listening = await asyncio.start_server(serve, HOST, 0, ssl=context)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def answer(text: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(text)
        writer.close()

    return serve


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def answer_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if (await reader.readline()).endswith(b"\n"):
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
    writer.close()


def forward_to(port: int) -> Serve:
    """Copy the bytes of each connection to a port and back."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while received := await reader.read(65_536):
            writer.write(received)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upper_reader, upper_writer = await asyncio.open_connection(HOST, port)
        await asyncio.gather(copy(reader, upper_writer), copy(upper_reader, writer))

    return serve


def advertise(broker: SingleBroker, host: str, port: int, broker_id: BrokerId = BROKER) -> None:
    registered = replace(broker.controller.image.brokers[BROKER], host=host, port=port)
    registered = replace(registered, broker_id=broker_id)
    broker.controller.publish(
        ClusterDelta(brokers=frozenset({BROKER})), brokers={registered.broker_id: registered}
    )


async def examined(port: int, **settings: str) -> Examination:
    given = {name.replace("_", "."): text for name, text in settings.items()}
    return await examine([(HOST, port)], given)


@pytest.fixture
def same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the clock of the test's controller, which shows a time of 1970."""

    async def hidden(_: object) -> None:
        return None

    monkeypatch.setattr(probes, "_skew_ms", hidden)


def names(found: Examination) -> list[str]:
    return [one.name for one in found.findings]


@pytest.mark.usefixtures("same_clock")
async def test_a_healthy_cluster_has_no_finding(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        found = await examined(broker.port)
    assert found.findings == ()
    assert (found.cluster_id, found.brokers) == ("test", {BROKER: f"{HOST}:{broker.port}"})


@pytest.mark.parametrize(
    ("serve", "name", "why"),
    [
        (answer(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "http-on-this-port", "an HTTP server"),
        (answer(b"\x15\x03\x01\x00\x02\x02\x46"), "tls-on-this-port", "the port speaks TLS"),
        (answer(b"SSH-2.0-OpenSSH\r\n"), "other-protocol", "b'SSH-'"),
        (close, "closed", "closed without an answer"),
        (say_nothing, "silent", "no answer to ApiVersions"),
        (answer_lines, "http-on-this-port", "an HTTP server"),
    ],
    ids=["http", "tls", "ssh", "closed", "silent", "http that waits for a line"],
)
async def test_a_port_of_another_protocol_is_named(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, name: str, why: str
) -> None:
    monkeypatch.setattr(probes, "TIMEOUT_S", 0.3)
    async with server(serve) as port:
        found = await examined(port)
    assert names(found) == [name]
    assert why in found.findings[0].why
    assert found.findings[0].subject == f"{HOST}:{port}"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_a_real_tls_server_is_recognized(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=t"
    subprocess.run(
        [*made.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with server(say_nothing, context) as port:
        assert names(await examined(port)) == ["tls-on-this-port"]
        assert names(await examined(port, security_protocol="SSL")) == ["tls-not-examined"]


@pytest.mark.usefixtures("same_clock")
async def test_a_client_with_tls_on_a_plain_port_is_named(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        found = await examined(broker.port, security_protocol="SSL")
    assert [one.subject for one in found.findings] == ["security.protocol"]


async def test_a_port_without_a_process_is_refused() -> None:
    async with server(close) as port:
        pass
    assert names(await examined(port)) == ["refused"]


@pytest.mark.usefixtures("same_clock")
async def test_an_advertised_name_that_resolves_to_nothing_is_named(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        advertise(broker, "kafka", broker.port)
        found = await examined(broker.port)
    assert names(found) == ["unresolvable"]
    assert f"broker {BROKER} advertises kafka:{broker.port}" in found.findings[0].why
    assert "often the name of a container" in found.findings[0].why
    assert "advertised.listeners" in found.findings[0].remedy


@pytest.mark.usefixtures("same_clock")
async def test_an_advertised_address_of_another_cluster_is_named(tmp_path: Path) -> None:
    async with single_broker(tmp_path / "a") as first, single_broker(tmp_path / "b") as second:
        second.server.context.cluster_id = "other"
        advertise(first, HOST, second.port)
        found = await examined(first.port)
        both = await examine([(HOST, first.port), (HOST, second.port)], {})
    assert names(found) == ["another-cluster"]
    assert "cluster other answers there" in found.findings[0].why
    assert "several-clusters" in names(both)


async def test_an_advertised_address_of_another_broker_is_named(tmp_path: Path) -> None:
    """One published port for three brokers: each answers as the same one."""
    async with single_broker(tmp_path) as broker, server(forward_to(broker.port)) as port:
        advertise(broker, HOST, port, BrokerId(BROKER + 1))
        found = await examined(broker.port)
    assert "another-broker" in names(found)


def test_a_loopback_address_that_leads_nowhere_is_explained_to_a_remote_client() -> None:
    assert "its own machine" in examination._place("127.0.0.1", ["kafka.test"])
    assert examination._place("127.0.0.1", ["localhost"]) == ""
    assert "container's" in examination._place("172.17.0.2", ["localhost"])


async def test_a_clock_that_differs_is_named(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        found = await examined(broker.port)
    assert names(found) == ["clock"]
    assert "s behind the clock here" in found.findings[0].why
    assert found.skew_ms is not None
    assert found.skew_ms < -1_000_000_000_000


async def test_a_cluster_whose_quorum_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with single_broker(tmp_path) as broker:
        lose_controller(monkeypatch, broker)
        found = await examined(broker.port)
    assert names(found) == ["no-controller"]
    assert "start a majority" in found.findings[0].remedy

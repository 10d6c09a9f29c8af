"""TLS on a listener: handshakes, principals, the slots of connections, and large responses."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from quorumlog.broker.authentication import certificate_principals
from quorumlog.broker.authentication.certificate_principals import CertificatePrincipals
from quorumlog.broker.server.api import ANONYMOUS, BrokerContext
from quorumlog.broker.server.server import ListenerTls, Server
from quorumlog.cluster.certificates import Authority, Issued, make_ca
from quorumlog.settings.tls import read_rules
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.io import tls_listener
from tests.support.broker.peer import HEARTBEAT, Peer, beat, connected, serving
from tests.support.broker.requests import produce
from tests.support.groups.asking import asking, create
from tests.support.waiting import until

SECURE = "SECURE"
uvloop: Any = pytest.importorskip("uvloop")
Story = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = make_ca(tmp_path_factory.mktemp("ca"))
    made.issue("server")
    made.issue("alice")
    return made


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Story], None]:
    """Run a story on one event loop, then on the other: they have TLS of their own."""

    def run_story(story: Story) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(story())

    return run_story


def context_of(
    authority: Authority, demand: ssl.VerifyMode = ssl.CERT_NONE, issued: Issued | None = None
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = authority.directory
    certificate, key = issued[:2] if issued else (files / "server.pem", files / "server.key")
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = demand
    return context


def client_of(authority: Authority, user: str = "", **versions: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    for name, version in versions.items():
        setattr(context, name, version)
    if user:
        files = authority.directory
        context.load_cert_chain(files / f"{user}.pem", files / f"{user}.key")
    return context


async def secured(
    server: Server, context: ssl.SSLContext, rules: str = "DEFAULT", connections_max: int = 100
) -> int:
    """Listen with TLS; return the port."""
    tls = ListenerTls(context=context, principals=CertificatePrincipals(read_rules(rules)))
    bound = socket.create_server(("127.0.0.1", 0), backlog=1024)
    return await server.serve(bound, SECURE, connections_max, tls=tls)


@asynccontextmanager
async def secure_peer(
    port: int, context: ssl.SSLContext, host: str = "localhost"
) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=host
    )
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def principal_at(port: int, context: ssl.SSLContext, seen: list[str]) -> str:
    """Return the principal of a client with this context."""
    async with secure_peer(port, context) as peer:
        peer.send(HeartbeatRequest(), 1, 4)
        assert (await peer.answer(HEARTBEAT, 4))[0] == 1
    return seen.pop()


def seeing(seen: list[str]) -> Any:
    def handle(context: BrokerContext, _header: object, _request: object) -> Any:
        seen.append(context.principal)
        return beat(0)

    return handle


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_principal_is_that_of_the_certificate(
    tmp_path: Path, authority: Authority, run: Callable[[Story], None], version: ssl.TLSVersion
) -> None:
    async def story() -> None:
        seen: list[str] = []
        versions = {"minimum_version": version, "maximum_version": version}
        async with serving(tmp_path, seeing(seen)) as (_, server, _):
            rules = "RULE:^CN=([^,]+),OU=local.*$/$1/U,DEFAULT"
            port = await secured(server, context_of(authority, ssl.CERT_OPTIONAL), rules)
            without, alice = (client_of(authority, user, **versions) for user in ("", "alice"))
            assert await principal_at(port, without, seen) == ANONYMOUS
            assert await principal_at(port, alice, seen) == "User:ALICE"
            await until(lambda: server.connection_counts[SECURE] == 0)

    run(story)


def unreadable(_certificate: bytes) -> str:
    raise ValueError("an item is cut off")


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_name_that_no_rule_matches_is_closed_without_a_slot(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    is_readable: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with serving(tmp_path) as (_, server, _):
            port = await secured(
                server, context_of(authority, ssl.CERT_OPTIONAL), "RULE:^CN=bob,.*$/bob/"
            )
            with suppress(OSError):
                async with secure_peer(port, client_of(authority, "alice")) as peer:
                    assert await peer.is_closed()
            await until(lambda: server.stats.handshakes_failed == 1)
            assert server.stats.connections == 0

    with pytest.MonkeyPatch.context() as patch:
        if not is_readable:
            patch.setattr(certificate_principals, "subject_name", unreadable)
        run(story)
    expected = "no rule of ssl.principal.mapping.rules matches its name"
    if not is_readable:
        expected = "its certificate has no readable name: an item is cut off"
    assert expected in lines(caplog)[0]


def damaged_name(authority: Authority) -> Issued:
    """Issue a certificate whose printable name is no ASCII, which OpenSSL accepts."""
    issued = authority.issue("xxxxxxxx")
    [certificate, *_] = x509.load_pem_x509_certificates(issued.certificate.read_bytes())
    key = load_pem_private_key((authority.directory / "ca.key").read_bytes(), None)
    signed = certificate.tbs_certificate_bytes.replace(
        b"\x0c\x08xxxxxxxx", b"\x13\x08" + b"\xff" * 8
    )
    whole = certificate.public_bytes(Encoding.DER)
    signature = cast(ec.EllipticCurvePrivateKey, key).sign(signed, ec.ECDSA(hashes.SHA256()))
    start = whole.index(certificate.tbs_certificate_bytes) + len(signed)
    algorithm = whole[start : start + 2 + whole[start + 1]]
    content = signed + algorithm + b"\x03" + bytes([len(signature) + 1, 0]) + signature
    pem = ssl.DER_cert_to_PEM_cert(b"\x30\x82" + len(content).to_bytes(2) + content)
    issued.certificate.write_text(pem)
    return issued


def test_a_name_that_is_no_text_is_closed_with_one_line(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    damaged_name(authority)

    async def story() -> None:
        async with serving(tmp_path) as (_, server, _):
            port = await secured(server, context_of(authority, ssl.CERT_OPTIONAL))
            with suppress(OSError):
                async with secure_peer(port, client_of(authority, "xxxxxxxx")) as peer:
                    assert await peer.is_closed()
            await until(lambda: server.stats.handshakes_failed == 1)
            assert server.stats.connections == 0

    run(story)
    [line] = lines(caplog)
    assert "its certificate has no readable name" in line


@pytest.mark.parametrize("user", ["", "mallory"], ids=["none", "of another CA"])
def test_a_required_certificate_is_missing_or_of_another_ca(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    caplog: pytest.LogCaptureFixture,
    user: str,
) -> None:
    context = client_of(authority)
    if user:
        context.load_cert_chain(*make_ca(tmp_path / "other").issue(user)[:2])

    async def story() -> None:
        async with serving(tmp_path / "data") as (_, server, _):
            port = await secured(server, context_of(authority, ssl.CERT_REQUIRED))
            for _ in range(2):
                with suppress(OSError):
                    async with secure_peer(port, context) as peer:
                        assert await peer.is_closed()
            await until(lambda: server.stats.handshakes_failed == 2)
            assert server.stats.connections == 0

    run(story)
    [line] = lines(caplog)
    assert ("its certificate is refused" if user else "has sent no certificate") in line.replace(
        "the peer's", "its"
    )


def test_a_client_refuses_a_wrong_host_a_wrong_ca_and_an_expired_certificate(
    tmp_path: Path, authority: Authority, run: Callable[[Story], None]
) -> None:
    now = datetime.now(UTC)
    old = authority.issue(
        "old", not_before=now - timedelta(days=2), not_after=now - timedelta(days=1)
    )
    strange = client_of(make_ca(tmp_path / "other"))

    async def refused(port: int, context: ssl.SSLContext, host: str = "localhost") -> str:
        with pytest.raises(ssl.SSLCertVerificationError) as error:
            async with secure_peer(port, context, host):
                pass
        return error.value.verify_message

    async def story() -> None:
        async with serving(tmp_path / "data") as (_, server, _):
            port = await secured(server, context_of(authority))
            assert "Hostname mismatch" in await refused(port, client_of(authority), "a.example")
            assert "certificate" in await refused(port, strange)
            server.renew_tls(SECURE, context_of(authority, issued=old))
            assert "expired" in await refused(port, client_of(authority))
            assert server.stats.connections == 0

    run(story)


OTHER_PROTOCOLS = pytest.mark.parametrize(
    "start_and_cause",
    [
        (b"\0\0\0\x20\0\x12\0\x03\0\0\0\x01\0\x04test" + bytes(16), "a plain text client on a TLS"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "the peer speaks HTTP, this listener TLS"),
    ],
    ids=["kafka", "http"],
)


@OTHER_PROTOCOLS
def test_another_protocol_is_closed_at_once_with_one_line(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    caplog: pytest.LogCaptureFixture,
    start_and_cause: tuple[bytes, str],
) -> None:
    start, cause = start_and_cause

    async def story() -> None:
        async with serving(tmp_path) as (_, server, _):
            port = await secured(server, context_of(authority))
            for _ in range(3):
                async with connected(port) as peer:
                    peer.writer.write(start)
                    with suppress(ConnectionResetError):
                        await peer.is_closed()
            await until(lambda: server.stats.handshakes_failed == 3)
            assert server.stats.connections == 0

    run(story)
    [line] = lines(caplog)
    assert cause in line
    assert line.startswith("127.0.0.1:")


def test_a_probe_of_the_port_leaves_no_line(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        async with serving(tmp_path) as (_, server, _):
            port = await secured(server, context_of(authority))
            for _ in range(3):
                async with connected(port):
                    pass
            listener = server._tls_listeners[SECURE]
            await until(lambda: not listener.handshakes)

    run(story)
    assert lines(caplog) == []


def test_silent_connections_hold_no_slot_and_are_limited(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKES_MAX", 50)

    async def story() -> None:
        seen: list[str] = []
        with ExitStack() as silent:
            async with serving(tmp_path, seeing(seen)) as (_, server, _):
                port = await secured(server, context_of(authority), connections_max=1)
                listener = server._tls_listeners[SECURE]
                for _ in range(1000):
                    silent.enter_context(socket.create_connection(("127.0.0.1", port)))
                    await asyncio.sleep(0)
                assert await principal_at(port, client_of(authority), seen) == ANONYMOUS
                await until(lambda: 0 < listener.handshakes <= 50)
                assert server.stats.connections == 1
            assert listener.handshakes == 0

    run(story)


def test_a_host_takes_no_room_of_the_handshakes_of_others(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKES_MAX", 5)

    async def story() -> None:
        async with serving(tmp_path) as (_, server, _):
            port = await secured(server, context_of(authority))
            listener = server._tls_listeners[SECURE]
            with ExitStack() as stack:
                for at in range(20):
                    host = "127.0.0.1" if at else "127.0.0.2"
                    stack.enter_context(
                        socket.create_connection(("127.0.0.1", port), source_address=(host, 0))
                    )
                    while listener.handshakes < min(at + 1, 5):
                        await asyncio.sleep(0)
                for _ in range(100):
                    await asyncio.sleep(0)
                hosts = [*listener._handshakes.values()]
                assert hosts == ["127.0.0.2", *["127.0.0.1"] * 4]

    run(story)


def test_connections_that_come_at_once_are_limited_too(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop accepts them without a turn in between, in which a handshake could end."""
    monkeypatch.setattr(tls_listener, "HANDSHAKES_MAX", 5)

    async def story() -> None:
        async with serving(tmp_path) as (_, server, _):
            port = await secured(server, context_of(authority))
            listener = server._tls_listeners[SECURE]
            for _ in range(3):
                with ExitStack() as stack:
                    for _ in range(40):
                        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    for _ in range(60):
                        await asyncio.sleep(0)
                        assert listener.handshakes <= 5
                    assert listener.handshakes == 5
                    async with secure_peer(port, client_of(authority)) as peer:
                        peer.send(HeartbeatRequest(), 1, 4)
                        assert (await peer.answer(HEARTBEAT, 4))[0] == 1
            await until(lambda: listener.handshakes == 0)

    run(story)


def test_a_handshake_has_a_time_limit(
    tmp_path: Path,
    authority: Authority,
    run: Callable[[Story], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKE_S", 0.05)

    async def story() -> None:
        async with serving(tmp_path) as (_, server, _):
            port = await secured(server, context_of(authority))
            async with connected(port) as peer:
                peer.writer.write(b"\x16\x03\x01")
                assert await peer.is_closed()
            await until(lambda: server.stats.handshakes_failed == 1)

    run(story)
    assert "no TLS handshake within 0.05 s" in lines(caplog)[0]


def test_a_renewed_certificate_is_for_later_handshakes(
    tmp_path: Path, authority: Authority, run: Callable[[Story], None]
) -> None:
    renewed = authority.issue("renewed")

    def name_at(peer: Peer) -> str:
        certificate = peer.writer.get_extra_info("peercert")
        return str(dict(part[0] for part in certificate["subject"])["commonName"])

    async def story() -> None:
        async with serving(tmp_path, seeing([])) as (_, server, _):
            port = await secured(server, context_of(authority))
            async with secure_peer(port, client_of(authority)) as before:
                server.renew_tls(SECURE, context_of(authority, issued=renewed))
                async with secure_peer(port, client_of(authority)) as after:
                    assert (name_at(before), name_at(after)) == ("server", "renewed")
                    for peer in (before, after):
                        peer.send(HeartbeatRequest(), 5, 4)
                        assert (await peer.answer(HEARTBEAT, 4))[0] == 5

    run(story)


def test_large_fetches_have_the_bytes_of_plain_text(
    tmp_path: Path, authority: Authority, run: Callable[[Story], None]
) -> None:
    """Ranges of files, which plain text sends without a copy, are read and encrypted."""
    values = [bytes([number]) * 300_000 for number in range(8)]
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 22)
    request = FetchRequest(
        max_bytes=1 << 22, topics=[FetchTopic(topic="t", partitions=[partition])]
    )

    async def fetched(peer: Peer) -> list[bytes]:
        for number in range(3):  # one behind the other
            peer.send(request, number, 12)
        return [await peer.frame() for _ in range(3)]

    async def story() -> None:
        async with asking(tmp_path) as (broker, client):
            await create(client, "t")
            for value in values:
                await produce(client, encode_batch([Record(0, 1000, None, value)]))
            port = await secured(broker.server, context_of(authority))
            async with connected(broker.port) as plain:
                frames = await fetched(plain)
            assert sum(map(len, frames)) > 3 * len(values) * 300_000
            async with secure_peer(port, client_of(authority)) as secret:
                assert await fetched(secret) == frames
                for number in range(20):  # more than the sockets hold: the rest counts as held
                    secret.send(request, number, 12)
                memory = broker.replicas.response_memory
                await until(lambda: memory.held >= len(values) * 300_000)

    run(story)

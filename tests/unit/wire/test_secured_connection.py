"""A connection with TLS and SASL: its errors name cause and remedy; sessions are renewed."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
import trustme

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.messages.produce import ProduceRequest
from quorumlog.wire.codec.messages.sasl_authenticate import SaslAuthenticateResponse
from quorumlog.wire.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from quorumlog.wire.codec.sasl import SCRAM_HASHES, SaslFailure
from quorumlog.wire.io import sasl
from quorumlog.wire.io.connection import (
    AuthenticationFailed,
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
)
from quorumlog.wire.io.security import ConnectionSecurity, SaslLogin
from tests.support.wire.sasl_broker import USERS, SaslBroker, serving
from tests.support.wire.scripted_broker import Broker
from tests.support.wire.scripted_broker import connected as plainly_connected

SCRAM = ["SCRAM-SHA-256", "SCRAM-SHA-512"]
ALICE = SaslLogin(mechanism="SCRAM-SHA-256", username="alice", password="secret")


def login(mechanism: str, user: str = "alice", password: str | None = None) -> SaslLogin:
    password = USERS[user] if password is None else password
    return SaslLogin(
        mechanism=mechanism, username=user, password=password, token=lambda: password and "good"
    )


@asynccontextmanager
async def connected(
    port: int, one: SaslLogin | None = ALICE, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[KafkaConnection]:
    security = ConnectionSecurity(tls=tls, login=one)
    host = options.pop("host", "127.0.0.1")
    connection = await KafkaConnection.open(
        host, port, client_id="me", security=security, **options
    )
    try:
        yield connection
    finally:
        await connection.close()


async def refused(port: int, one: SaslLogin | None = ALICE, **options: Any) -> str:
    with pytest.raises(AuthenticationFailed) as failure:
        async with connected(port, one, **options):
            pass
    return str(failure.value)


# --- SASL ---


@pytest.mark.parametrize("user", sorted(USERS))
@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM, "OAUTHBEARER"])
async def test_a_user_is_authenticated_and_requests_are_answered(mechanism: str, user: str) -> None:
    broker = SaslBroker()
    async with serving(broker) as port, connected(port, login(mechanism, user)) as connection:
        answer = await connection.send(HeartbeatRequest(generation_id=7))
        assert answer == HeartbeatResponse(throttle_time_ms=7)
        assert broker.log[:3] == ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]


@pytest.mark.parametrize(
    ("mechanism", "sentence"),
    [
        ("PLAIN", "Authentication failed: Invalid username or password (check the user name"),
        ("SCRAM-SHA-256", "Authentication failed during authentication (check the user name"),
        ("SCRAM-SHA-512", "Authentication failed during authentication (check the user name"),
    ],
)
async def test_a_wrong_password_is_refused_with_the_brokers_sentence(
    mechanism: str, sentence: str
) -> None:
    async with serving(SaslBroker()) as port:
        assert (await refused(port, login(mechanism, password="wrong"))).startswith(sentence)
        unknown = SaslLogin(mechanism=mechanism, username="bob", password="x")
        assert (await refused(port, unknown)).startswith(sentence)


async def test_a_refused_token_is_answered_once_and_gives_the_reason() -> None:
    bad = SaslLogin(mechanism="OAUTHBEARER", token=lambda: "bad")
    broker = SaslBroker()
    async with serving(broker) as port:
        assert '{"status":"invalid_token"}' in await refused(port, bad)
    assert broker.log.count("SaslAuthenticate") == 2  # the token, then the byte 0x01


def no_token() -> str:
    raise OSError("the issuer is down")


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (SaslLogin(mechanism="OAUTHBEARER"), "needs a token"),
        (SaslLogin(mechanism="GSSAPI"), "no mechanism 'GSSAPI' here: PLAIN, SCRAM-SHA-256"),
        (SaslLogin(mechanism="PLAIN"), "the user name is empty"),
    ],
)
async def test_no_request_is_sent_without_credentials(one: SaslLogin, why: str) -> None:
    broker = SaslBroker()
    async with serving(broker) as port:
        assert why in await refused(port, one)
    assert broker.log == ["ApiVersions"]


async def test_an_issuer_that_is_down_is_an_ordinary_loss() -> None:
    """The next attempt may succeed: nobody has refused."""
    broker, down = SaslBroker(), SaslLogin(mechanism="OAUTHBEARER", token=no_token)
    async with serving(broker) as port:
        with pytest.raises(ConnectionLost, match="no token: OSError: the issuer is down") as loss:
            async with connected(port, down):
                pass
    assert not isinstance(loss.value, AuthenticationFailed)
    assert broker.log == ["ApiVersions"]


async def test_a_listener_without_the_mechanism_names_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(cast(dict[str, str], SCRAM_HASHES), "SCRAM-SHA-1", "sha1")
    async with serving(SaslBroker()) as port:
        why = await refused(port, SaslLogin(mechanism="SCRAM-SHA-1", username="u", password="p"))
    assert why == (
        "the listener has no mechanism SCRAM-SHA-1;"
        " it has: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
    )


async def test_a_listener_without_sasl_is_named() -> None:
    async with serving(SaslBroker(without=(17, 36))) as port:
        assert "the listener has no SASL" in await refused(port)


async def test_a_listener_in_another_state_is_named() -> None:
    async def exchange(request: Any) -> Any:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)

    with pytest.raises(SaslFailure, match="the listener has no SASL"):
        await sasl.authenticate(exchange, ALICE)


async def test_a_broker_that_never_ends_the_exchange_is_left() -> None:
    async def exchange(request: Any) -> Any:
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse()
        return SaslAuthenticateResponse(auth_bytes=b"{}")

    bearer = SaslLogin(mechanism="OAUTHBEARER", token=lambda: "t")
    with pytest.raises(SaslFailure, match="no end of the OAUTHBEARER exchange"):
        await sasl.authenticate(exchange, bearer)


def with_other_signature(token: bytes) -> bytes:
    return b"v=" + b"A" * 43 + b"=" if token.startswith(b"v=") else token


def with_other_nonce(token: bytes) -> bytes:
    return token.replace(b"r=", b"r=x") if token.startswith(b"r=") else token


@pytest.mark.parametrize(
    ("tampers", "why"),
    [(with_other_signature, "signature is wrong"), (with_other_nonce, "does not continue")],
)
async def test_a_broker_without_the_users_keys_is_refused(
    tampers: Callable[[bytes], bytes], why: str
) -> None:
    async with serving(SaslBroker(tampers=tampers)) as port:
        assert why in await refused(port)


def test_secrets_are_in_no_text() -> None:
    one = login("OAUTHBEARER")
    assert "secret" not in repr(ConnectionSecurity(login=one))
    assert ConnectionSecurity(login=one).protocol == "SASL_PLAINTEXT"


# --- sessions that end ---


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.002)


async def test_a_session_is_renewed_again_and_again() -> None:
    broker = SaslBroker(lifetime_ms=50)
    async with serving(broker) as port, connected(port) as connection:
        await until(lambda: broker.log.count("SaslHandshake") >= 4)
        assert (await connection.send(HeartbeatRequest(generation_id=1))).throttle_time_ms == 1
    assert len(broker.writers) == 1


async def test_requests_wait_while_a_session_is_renewed() -> None:
    """Requests before the renewal get their answers, those during it are sent behind it."""
    broker = SaslBroker(lifetime_ms=300, holds=asyncio.Event())
    async with serving(broker) as port, connected(port, in_flight_max=2) as connection:
        before = [await connection.send(HeartbeatRequest(generation_id=n)) for n in range(2)]
        await until(lambda: broker.log[-1] == "SaslAuthenticate" and len(broker.log) > 6)
        broker.lifetime_ms = 0
        connection.send_no_reply(ProduceRequest(acks=0))
        during = [
            asyncio.create_task(connection.send(HeartbeatRequest(generation_id=n)))
            for n in range(2, 8)
        ]
        draining = asyncio.create_task(connection.drain())
        await asyncio.sleep(0.01)
        assert not any(one.done() for one in (*during, draining))
        assert broker.log[-1] == "SaslAuthenticate"
        assert broker.holds is not None
        broker.holds.set()
        answers = [*before, *await asyncio.gather(*during)]
        await draining
        assert [one.throttle_time_ms for one in answers] == [*range(8)]
    renewal = len(broker.log) - broker.log[::-1].index("SaslAuthenticate")
    assert broker.log[renewal:] == ["Produce", *["Heartbeat"] * 6]


async def test_a_renewal_that_is_refused_ends_the_connection_with_its_reason() -> None:
    broker = SaslBroker(lifetime_ms=50)
    async with serving(broker) as port, connected(port) as connection:
        broker.users["alice"] = "changed"
        error = await connection.closed
        assert isinstance(error, AuthenticationFailed)
        with pytest.raises(ConnectionLost):
            await connection.send(HeartbeatRequest())


async def test_a_renewal_without_an_answer_times_out() -> None:
    broker = SaslBroker(lifetime_ms=50, holds=asyncio.Event())
    async with serving(broker) as port, connected(port, request_timeout_ms=100) as connection:
        waiting = asyncio.create_task(connection.send(HeartbeatRequest(), timeout_ms=5_000))
        await waiting
        assert isinstance(await connection.closed, RequestTimedOut)
        assert broker.holds is not None
        broker.holds.set()


async def test_a_renewal_within_a_throttle_time_does_not_time_out() -> None:
    """The broker reads no request meanwhile (KIP-219), nor that of the renewal."""
    broker = SaslBroker(lifetime_ms=50, holds=asyncio.Event())
    async with serving(broker) as port, connected(port, request_timeout_ms=200) as connection:
        await connection.send(HeartbeatRequest(generation_id=600))  # its throttle time, in ms
        await until(lambda: broker.log.count("SaslHandshake") == 2)
        broker.lifetime_ms = 0
        loop = asyncio.get_running_loop()
        late_s = loop.time() + 0.3
        await until(lambda: loop.time() >= late_s)
        assert broker.holds is not None
        broker.holds.set()
        assert (await connection.send(HeartbeatRequest(generation_id=1))).throttle_time_ms == 1


@pytest.mark.parametrize("lifetime_ms", [1_000, 3_600_000])
def test_connections_are_not_renewed_all_at_once(lifetime_ms: int) -> None:
    delays = [sasl.renewal_delay_s(lifetime_ms) * 1000 / lifetime_ms for _ in range(50)]
    assert min(delays) >= 0.85
    assert max(delays) <= 0.95
    assert len(set(delays)) > 10


# --- TLS ---

CA = trustme.CA()
OTHER = trustme.CA()
YEAR = timedelta(days=365)
NOW = datetime.now(UTC)


def of_broker(certificate: trustme.LeafCert, *, requires: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if requires:
        context.verify_mode = ssl.CERT_REQUIRED
        CA.configure_trust(context)
    return context


def of_client(ca: trustme.CA = CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    ca.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


LOCAL = CA.issue_cert("127.0.0.1", "localhost")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("one", [None, ALICE])
async def test_sasl_over_tls(version: ssl.TLSVersion, host: str, one: SaslLogin | None) -> None:
    client = of_client()
    client.maximum_version = client.minimum_version = version
    broker = SaslBroker()
    async with (
        serving(broker, of_broker(LOCAL)) as port,
        connected(port, one, client, host=host) as connection,
    ):
        if one is not None:
            assert (await connection.send(HeartbeatRequest(generation_id=3))).throttle_time_ms == 3
        assert len(connection.api_versions) == 5


@pytest.mark.parametrize(
    ("certificate", "ca", "why"),
    [
        (LOCAL, OTHER, "unable to get local issuer certificate (set the CA that signed it)"),
        (CA.issue_cert("example.org"), CA, "(connect to a name or an address that is in the"),
        (
            CA.issue_cert("127.0.0.1", not_before=NOW - YEAR, not_after=NOW - YEAR / 2),
            CA,
            "certificate has expired (renew it",
        ),
        (
            CA.issue_cert("127.0.0.1", not_before=NOW + YEAR / 2, not_after=NOW + YEAR),
            CA,
            "certificate is not yet valid (renew it, or mend the clock)",
        ),
    ],
)
async def test_a_certificate_of_the_broker_is_refused_with_the_remedy(
    certificate: trustme.LeafCert, ca: trustme.CA, why: str
) -> None:
    async with serving(SaslBroker(), of_broker(certificate)) as port:
        text = await refused(port, tls=of_client(ca))
    assert why in text
    assert text.startswith("TLS: the broker's certificate is refused: ")


@asynccontextmanager
async def alerting(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A listener whose TLS reports its failures: asyncio's own closes without an alert."""

    def handshake(server: socket.socket) -> None:
        plain, _ = server.accept()
        with plain, suppress(OSError), context.wrap_socket(plain, server_side=True) as wrapped:
            wrapped.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = asyncio.create_task(asyncio.to_thread(handshake, server))
        yield server.getsockname()[1]
        await answering


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_listener_that_requires_a_certificate_is_named(version: ssl.TLSVersion) -> None:
    client = of_client()
    client.maximum_version = version
    async with alerting(of_broker(LOCAL, requires=True)) as port:
        with pytest.raises(ConnectionLost, match="certificate of the client"):
            await KafkaConnection.open(
                "127.0.0.1", port, client_id="me", security=ConnectionSecurity(tls=client)
            )
    async with serving(SaslBroker(), of_broker(LOCAL, requires=True)) as port:
        with pytest.raises(ConnectionLost, match="certificate of the client"):
            await KafkaConnection.open(
                "127.0.0.1", port, client_id="me", security=ConnectionSecurity(tls=client)
            )
        own = of_client(certificate=CA.issue_cert("me@example.org"))
        async with connected(port, tls=own) as connection:
            assert connection.api_versions


async def test_versions_of_tls_that_differ_are_named() -> None:
    broker = of_broker(LOCAL)
    broker.minimum_version = ssl.TLSVersion.TLSv1_3
    client = of_client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    async with alerting(broker) as port:
        assert "share no version of TLS" in await refused(port, None, tls=client)


async def test_tls_on_a_port_of_another_protocol_is_named() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(http, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert "does not speak TLS: set the security protocol" in await refused(
        port, None, tls=of_client()
    )
    server.close()
    await server.wait_closed()


async def test_tls_on_a_plain_port_that_closes_is_no_refusal() -> None:
    """The broker may be stopping: the client must try again."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.transport.abort()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionLost, match="not speak TLS, or be stopping") as failure:
        await KafkaConnection.open(
            "127.0.0.1", port, client_id="me", security=ConnectionSecurity(tls=of_client())
        )
    assert not isinstance(failure.value, AuthenticationFailed)
    server.close()
    await server.wait_closed()


async def test_a_refused_connection_is_no_matter_of_tls() -> None:
    async with serving(SaslBroker()) as port:
        pass
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}: .*Errno 111"):
        await KafkaConnection.open(
            "127.0.0.1", port, client_id="me", security=ConnectionSecurity(tls=of_client())
        )


async def test_a_silent_listener_ends_the_handshake_in_time() -> None:
    silent = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(wait, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(RequestTimedOut, match="no connection to"):
        await KafkaConnection.open(
            "127.0.0.1",
            port,
            client_id="me",
            request_timeout_ms=50,
            security=ConnectionSecurity(tls=of_client()),
        )
    silent.set()
    server.close()
    await server.wait_closed()


async def test_a_plain_connection_stays_as_it_was() -> None:
    async with plainly_connected(Broker(), security=ConnectionSecurity()) as (_, connection):
        assert connection.api_versions[3] == range(13)

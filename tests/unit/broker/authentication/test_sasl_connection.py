"""Connections to a SASL listener: frames, the delay of failures, lifetimes, and hostile clients."""

import asyncio
import logging
import random
import struct
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from scramp import ScramClient

from quorumlog.broker.authentication.authenticator import Authenticator
from quorumlog.broker.server.api import BrokerContext
from quorumlog.broker.server.sasl_connection import SaslConnection
from quorumlog.metadata_quorum.image.scram import ScramMechanism
from quorumlog.settings.sasl import MechanismSettings, SaslSettings, TokenSettings
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Request
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.messages.metadata import MetadataRequest
from quorumlog.wire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from quorumlog.wire.codec.messages.sasl_handshake import SaslHandshakeRequest
from quorumlog.wire.codec.schemas import decode_response, encode_request
from tests.support.broker.produce_twins import Wire
from tests.support.groups.single_broker import SingleBroker, single_broker
from tests.support.sizes import tries
from tests.support.waiting import loop_turns
from tests.unit.broker.authentication.test_mechanisms import STORED, first_message, unsigned

DELAY_MS = 100
RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0wrong"
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
SETTINGS = SaslSettings(
    mechanisms={
        "PLAIN": MechanismSettings(
            name="PLAIN", users={"alice": "secret", "bob": "b"}, max_reauth_ms=5000
        ),
        "SCRAM-SHA-256": MechanismSettings(name="SCRAM-SHA-256"),
        "OAUTHBEARER": MechanismSettings(name="OAUTHBEARER", tokens=TokenSettings()),
    },
    failed_delay_ms=DELAY_MS,
    receive_max_bytes=10_000,
)


class SaslClient:
    """A client whose bytes go to a connection without a socket."""

    def __init__(self, broker: SingleBroker, authenticator: Authenticator) -> None:
        self.connection = SaslConnection(broker.server, "SASL", authenticator=authenticator)
        vars(self.connection)["_is_over"] = lambda _now_s: False  # never another turn of the loop
        self.wire = Wire()
        self.connection.connection_made(cast(asyncio.BaseTransport, self.wire))
        self._requests: list[tuple[int, int]] = []

    @property
    def context(self) -> BrokerContext:
        return self.connection._context

    def write(self, data: bytes) -> None:
        """Pass bytes as from the socket; a closed or paused one reads no more."""
        while data and not self.wire.is_closed and self.wire.reads:
            free = self.connection.get_buffer(-1)
            part, data = data[: len(free)], data[len(free) :]
            free[: len(part)] = part
            self.connection.buffer_updated(len(part))

    def send(self, request: Request[Any], version: int) -> None:
        self._requests.append((request.API_KEY, version))
        frame = encode_request(request, api_version=version, correlation_id=1, client_id="c")
        self.write(b"".join(frame))

    def responses(self) -> list[Any]:
        """The responses since the last call."""
        found = []
        while self.wire.sent:
            (size,) = struct.unpack_from(">i", self.wire.sent)
            api_key, version = self._requests.pop(0)
            found.append(decode_response(api_key, version, self.wire.sent[4 : 4 + size])[1])
            del self.wire.sent[: 4 + size]
        return found

    def request(self, request: Request[Any], version: int = 1) -> Any:
        self.send(request, version)
        [response] = self.responses()
        return response

    def begin(self, mechanism: str = "PLAIN") -> None:
        answer = self.request(SaslHandshakeRequest(mechanism=mechanism))
        assert answer.error_code == ErrorCode.NONE

    def token(self, token: bytes) -> Any:
        return self.request(SaslAuthenticateRequest(auth_bytes=token))

    def is_served(self) -> bool:
        self.send(MetadataRequest(topics=[]), 1)
        return len(self.responses()) == 1


class Listener:
    """A broker with a SASL listener."""

    def __init__(self, broker: SingleBroker) -> None:
        self.broker = broker
        self.credentials = {**STORED}
        self.authenticator = Authenticator(
            SETTINGS,
            credentials=lambda: self.credentials,
            secret=b"secret",
            tasks=Tasks(broker.failures.append),
        )

    def connect(self) -> SaslClient:
        return SaslClient(self.broker, self.authenticator)

    def logged_in(self, token: bytes = RIGHT) -> SaslClient:
        client = self.connect()
        client.begin()
        assert client.token(token).error_code == ErrorCode.NONE
        return client

    @property
    def stats(self) -> tuple[int, int, int, int, int]:
        stats = self.broker.server.stats
        return (
            stats.authentications,
            stats.authentications_failed,
            stats.reauthentications,
            stats.reauthentications_failed,
            stats.sessions_ended,
        )


@asynccontextmanager
async def listener(directory: Path) -> AsyncIterator[Listener]:
    async with single_broker(directory) as broker:
        yield Listener(broker)


async def test_a_client_is_served_with_its_name_once_it_is_authenticated(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        versions = client.request(ApiVersionsRequest(), 0)
        assert {17, 18, 36} <= {one.api_key for one in versions.api_keys}
        handshake = client.request(SaslHandshakeRequest(mechanism="PLAIN"))
        assert handshake.mechanisms == ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"]
        answer = client.token(RIGHT)
        assert (answer.error_code, answer.session_lifetime_ms) == (ErrorCode.NONE, 5000)
        assert client.context.principal == "User:alice"
        assert client.is_served()
        assert sasl.stats == (1, 0, 0, 0, 0)


async def test_requests_in_the_same_bytes_are_served_in_their_order(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        requests: list[tuple[Request[Any], int]] = [
            (ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3),
            (SaslHandshakeRequest(mechanism="PLAIN"), 1),
            (SaslAuthenticateRequest(auth_bytes=RIGHT), 2),
            (MetadataRequest(topics=[]), 9),
        ]
        data = b""
        for request, version in requests:
            client._requests.append((request.API_KEY, version))
            data += b"".join(
                encode_request(request, api_version=version, correlation_id=1, client_id=None)
            )
        for at in range(0, len(data), 7):
            client.write(data[at : at + 7])
        assert [type(one).__name__ for one in client.responses()] == [
            "ApiVersionsResponse",
            "SaslHandshakeResponse",
            "SaslAuthenticateResponse",
            "MetadataResponse",
        ]


async def test_an_older_client_sends_its_tokens_without_headers(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        client.send(SaslHandshakeRequest(mechanism="PLAIN"), 0)
        client.responses()
        client.write(len(RIGHT).to_bytes(4) + RIGHT)
        assert bytes(client.wire.sent) == bytes(4)
        client.wire.sent.clear()
        assert client.is_served()


async def test_an_unsupported_version_of_api_versions_may_be_followed_by_another(
    tmp_path: Path,
) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        client._requests.append((18, 0))
        client.write((12).to_bytes(4) + struct.pack(">hhihh", 18, 99, 1, -1, 0))
        assert client.responses()[0].error_code == ErrorCode.UNSUPPORTED_VERSION
        assert client.request(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE
        client.begin()


async def test_another_request_closes_at_once_without_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        assert not client.is_served()
        assert client.wire.is_closed
        client.connection.connection_lost(None)
        assert "closed: Metadata v1 came during the authentication" in caplog.text


@pytest.mark.jumping_time
async def test_the_answer_of_a_failure_waits_for_a_timer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with listener(tmp_path) as sasl:
        failing = [sasl.connect() for _ in range(50)]
        for client in failing:
            client.begin()
            client.send(SaslAuthenticateRequest(auth_bytes=WRONG), 1)
        right = sasl.logged_in()  # it waits for none of them
        assert right.is_served()
        assert not any(client.wire.sent or client.wire.is_closed for client in failing)
        assert not any(client.wire.reads for client in failing)
        await asyncio.sleep(DELAY_MS / 1000 * 0.9)
        assert not any(client.wire.sent for client in failing)
        await asyncio.sleep(DELAY_MS / 1000 * 0.2)
        for client in failing:
            [answer] = client.responses()
            assert answer.error_code == FAILED
            assert answer.error_message == "Authentication failed: Invalid username or password"
            assert client.wire.is_closed
            client.connection.connection_lost(None)
        assert sasl.stats == (1, 50, 0, 0, 0)
        assert "wrong password of 'alice'" in caplog.text
        assert "secret" not in caplog.text


@pytest.mark.jumping_time
async def test_a_huge_name_is_neither_logged_nor_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with listener(tmp_path) as sasl:
        huge = "x" * 7000
        clients = [sasl.connect() for _ in range(4)]
        for client in clients[:2]:
            client.begin()
        clients[0].send(SaslAuthenticateRequest(auth_bytes=f"\0{huge}\0p".encode()), 1)
        clients[1].send(SaslAuthenticateRequest(auth_bytes=f"{huge}\0alice\0secret".encode()), 1)
        clients[2].send(SaslHandshakeRequest(mechanism=huge), 1)
        clients[3].begin("OAUTHBEARER")
        clients[3].token(first_message(unsigned({"sub": "a", "exp": 1}, {"alg": huge})))
        clients[3].send(SaslAuthenticateRequest(auth_bytes=b"\x01"), 1)
        await asyncio.sleep(1)
        for client in clients:
            assert client.wire.is_closed
            client.connection.connection_lost(None)
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 4
        assert max(map(len, lines)) < 500


@pytest.mark.jumping_time
async def test_a_client_that_leaves_before_the_answer_is_forgotten(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        client.begin()
        client.send(SaslAuthenticateRequest(auth_bytes=WRONG), 1)
        client.connection.connection_lost(None)
        await asyncio.sleep(1)
        assert not client.wire.sent


@pytest.mark.jumping_time
async def test_a_session_ends_when_a_request_comes_too_late(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        early, late, renewed = (sasl.logged_in() for _ in range(3))
        await asyncio.sleep(4.9)
        assert early.is_served()
        renewed.begin()
        assert renewed.token(RIGHT).session_lifetime_ms == 5000
        await asyncio.sleep(0.2)
        assert not late.wire.is_closed  # only a request closes it
        assert not late.is_served()
        assert late.wire.is_closed
        assert renewed.is_served()
        assert sasl.stats == (3, 0, 1, 0, 1)


@pytest.mark.jumping_time
async def test_a_client_that_does_not_authenticate_is_closed_when_idle(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        silent, slow = sasl.connect(), sasl.connect()
        slow.write((300).to_bytes(4) + b"\0")
        await asyncio.sleep(sasl.broker.context.settings.connections_max_idle_ms / 1000 * 1.2)
        assert silent.wire.is_closed
        assert slow.wire.is_closed


@pytest.mark.jumping_time
async def test_another_user_cannot_take_a_connection_over(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.logged_in()
        await asyncio.sleep(2)
        client.begin()
        client.send(SaslAuthenticateRequest(auth_bytes=b"\0bob\0b"), 1)
        await asyncio.sleep(0.2)
        [answer] = client.responses()
        assert answer.error_code == FAILED
        assert "from User.alice: User.bob" in answer.error_message
        assert client.context.principal == "User:alice"
        assert client.wire.is_closed
        assert sasl.stats == (1, 0, 0, 1, 0)


def scram(client: SaslClient, user: str, password: str) -> Any:
    """The last answer of a login; None if it waits."""
    login = ScramClient(["SCRAM-SHA-256"], user, password)
    client.begin("SCRAM-SHA-256")
    first = client.token(login.get_client_first().encode())
    login.set_server_first(bytes(first.auth_bytes).decode())
    client.send(SaslAuthenticateRequest(auth_bytes=login.get_client_final().encode()), 1)
    return next(iter(client.responses()), None)


async def test_changed_and_deleted_credentials_count_from_the_next_authentication_on(
    tmp_path: Path,
) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        assert scram(client, "alice", "secret").error_code == ErrorCode.NONE
        sasl.credentials["alice", ScramMechanism.SHA_256] = STORED["bob", ScramMechanism.SHA_256]
        assert scram(sasl.connect(), "alice", "b").error_code == ErrorCode.NONE
        assert scram(sasl.connect(), "alice", "secret") is None
        del sasl.credentials["alice", ScramMechanism.SHA_256]
        assert scram(sasl.connect(), "alice", "b") is None
        assert client.is_served()  # as in Kafka, until it must authenticate again


@pytest.mark.jumping_time
async def test_a_bad_token_is_challenged_before_it_fails(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        client.begin("OAUTHBEARER")
        challenge = client.token(first_message(unsigned({"sub": "alice", "exp": 1})))
        assert challenge.error_code == ErrorCode.NONE
        assert bytes(challenge.auth_bytes) == b'{"status":"invalid_token"}'
        client.send(SaslAuthenticateRequest(auth_bytes=b"\x01"), 1)
        await asyncio.sleep(1)
        [answer] = client.responses()
        assert (answer.error_code, answer.error_message) == (FAILED, '{"status":"invalid_token"}')


@pytest.mark.jumping_time
async def test_without_a_session_limit_a_second_handshake_is_refused(tmp_path: Path) -> None:
    async with listener(tmp_path) as sasl:
        client = sasl.connect()
        assert scram(client, "alice", "secret").session_lifetime_ms == 0
        await asyncio.sleep(500)
        answer = client.request(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.token(b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.is_served()


async def test_a_listener_without_sasl_refuses_its_requests(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        for key in (17, 36):
            answer = broker.context.handlers[key].handle(broker.context, cast(Any, None), None)
            assert cast(Any, answer).error_code == ErrorCode.ILLEGAL_SASL_STATE
        for key in (38, 39, 40, 41):
            refused: Any = broker.context.handlers[key].handle(
                broker.context, cast(Any, None), None
            )
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            broker.context.principal = "User:alice"
            refused = broker.context.handlers[key].handle(broker.context, cast(Any, None), None)
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            broker.context.principal = "User:ANONYMOUS"


@pytest.mark.jumping_time
async def test_a_long_name_without_a_password_writes_a_short_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "é" * 4000 + "\n"
    async with listener(tmp_path) as sasl:
        for mechanism in SETTINGS.mechanisms:
            client = sasl.connect()
            client.begin(mechanism)
            if mechanism == "PLAIN":
                client.send(SaslAuthenticateRequest(auth_bytes=f"\0{name}\0x".encode()), 1)
            elif mechanism == "OAUTHBEARER":
                claims = {"sub": name, "exp": 1}
                client.token(first_message(unsigned(claims | {"sub": name[3000:]})))
                client.send(SaslAuthenticateRequest(auth_bytes=b"\x01"), 1)
            else:
                first = client.token(f"n,,n={name},r=abc".encode()).auth_bytes
                nonce = bytes(first).partition(b",")[0].decode()
                final = f"c=biws,{nonce},p={'A' * 43}=".encode()
                client.send(SaslAuthenticateRequest(auth_bytes=final), 1)
            await asyncio.sleep(2 * DELAY_MS / 1000)
            client.connection.connection_lost(None)
    lines = [one for one in caplog.messages if "failed authentication" in one]
    assert len(lines) == len(SETTINGS.mechanisms)
    assert all(len(line) < 500 and "\n" not in line for line in lines)


def hostile_bytes(chance: random.Random) -> bytes:
    """One frame: of any API with a random body, of a huge length, or a step of a login."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(40))
    if kind == 1:
        return chance.choice([2**31 - 1, 10_001, -1]).to_bytes(4, signed=True)
    api_key = chance.choice([17, 17, 18, 36, 36, 36, chance.randrange(100)])
    header = struct.pack(">hhih", api_key, chance.randrange(4), chance.randrange(9), -1)
    body = chance.randbytes(chance.choice([0, 3, 60, 3000]))
    if kind in {2, 3} and api_key in {17, 36}:
        request: Request[Any] = (
            SaslHandshakeRequest(mechanism=chance.choice([*SETTINGS.mechanisms, "X"]))
            if api_key == 17
            else SaslAuthenticateRequest(auth_bytes=chance.choice([WRONG, b"n,,n=alice,r=x", body]))
        )
        frame = encode_request(
            request, api_version=chance.randrange(2), correlation_id=1, client_id=None
        )
        return b"".join(frame)
    return (len(header) + len(body)).to_bytes(4) + header + body


@pytest.mark.parametrize("seed", range(4))
async def test_hostile_frames_are_not_served_and_hold_no_memory(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the three APIs of an authentication are answered, whatever comes in whatever order."""
    caplog.set_level(logging.CRITICAL)
    chance = random.Random(seed)
    async with listener(tmp_path) as sasl:
        open_clients: list[SaslClient] = []
        tracemalloc.start()
        try:
            for _ in range(tries(2000)):
                if len(open_clients) < 20:
                    open_clients.append(sasl.connect())
                client = chance.choice(open_clients)
                data = hostile_bytes(chance)
                cut = chance.randrange(len(data) + 1)
                client.write(data[:cut])
                client.write(data[cut:])
                assert client.context.principal == "User:ANONYMOUS"
                client.wire.sent.clear()
                if client.wire.is_closed or not client.wire.reads:
                    open_clients.remove(client)
                    client.connection.connection_lost(None)
            await loop_turns(5)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 4_000_000
        assert {*sasl.broker.server.stats.apis} <= {17, 18, 36}
        assert sasl.stats[0] == 0
        assert sasl.broker.violations == sasl.broker.failures == []
        right = sasl.logged_in()
        assert right.is_served()

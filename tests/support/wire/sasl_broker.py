"""A listener that requires SASL, with scramp as the server of SCRAM, and optionally TLS."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from scramp import ScramException, ScramMechanism

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.messages.produce import ProduceRequest
from quorumlog.wire.codec.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from quorumlog.wire.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from quorumlog.wire.codec.schemas import decode_request, encode_response

USERS = {"alice": "secret", "ann,e=x": "pa ß"}
VERSIONS = {0: (3, 9), 12: (0, 4), 17: (0, 1), 18: (0, 4), 36: (0, 2)}


class Refused(Exception):
    """The text goes into the answer."""


Server = Callable[[bytes], bytes]
"""Takes a token, returns the next; raises Refused."""


@dataclass(eq=False)
class SaslBroker:
    """Serves users of three mechanisms; every option changes one thing for the worse."""

    lifetime_ms: int = 0
    without: tuple[int, ...] = ()  # APIs that it does not offer
    tampers: Callable[[bytes], bytes] = bytes  # with its tokens
    holds: asyncio.Event | None = None  # tokens after the first authentication wait for it
    users: dict[str, str] = field(default_factory=lambda: dict(USERS))
    log: list[str] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        session = _Session(self)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header, request = decode_request(await reader.readexactly(size))
                self.log.append(type(request).__name__.removesuffix("Request"))
                if session.renews(request) and self.holds is not None:
                    await self.holds.wait()
                if isinstance(request, ProduceRequest) and session.is_complete:
                    continue
                if (answer := session.answer(request)) is None:
                    return
                writer.writelines(encode_response(header, answer))
                if getattr(answer, "error_code", 0):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def versions(self) -> ApiVersionsResponse:
        known = [
            ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in VERSIONS.items()
            if key not in self.without
        ]
        return ApiVersionsResponse(api_keys=known)


class _Session:
    """One connection."""

    def __init__(self, broker: SaslBroker) -> None:
        self._broker = broker
        self._server: Server | None = None
        self.is_complete = False
        self._was_complete = False

    def renews(self, request: object) -> bool:
        return self._was_complete and isinstance(request, SaslAuthenticateRequest)

    def answer(self, request: object) -> Response | None:
        match request:
            case ApiVersionsRequest():
                return self._broker.versions()
            case SaslHandshakeRequest():
                return self._handshake(request.mechanism)
            case SaslAuthenticateRequest() if self._server is not None:
                return self._authenticate(self._server, request.auth_bytes)
            case HeartbeatRequest() if self.is_complete:
                return HeartbeatResponse(throttle_time_ms=request.generation_id)
            case _:
                return None

    def _handshake(self, mechanism: str) -> SaslHandshakeResponse:
        self.is_complete = False
        servers: dict[str, Callable[[], Server]] = {
            "PLAIN": lambda: self._plain,
            "SCRAM-SHA-256": lambda: self._scram("SCRAM-SHA-256"),
            "SCRAM-SHA-512": lambda: self._scram("SCRAM-SHA-512"),
            "OAUTHBEARER": lambda: self._bearer,
        }
        names = list(servers)
        if mechanism not in servers:
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return SaslHandshakeResponse(error_code=code, mechanisms=names)
        self._server = servers[mechanism]()
        return SaslHandshakeResponse(mechanisms=names)

    def _authenticate(self, server: Server, token: bytes) -> SaslAuthenticateResponse:
        try:
            answer = self._broker.tampers(server(bytes(token)))
        except Refused as refusal:
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return SaslAuthenticateResponse(error_code=code, error_message=str(refusal))
        lifetime_ms = self._broker.lifetime_ms if self.is_complete else 0
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms)

    def _complete(self) -> bytes:
        self.is_complete = self._was_complete = True
        return b""

    def _plain(self, token: bytes) -> bytes:
        identity, name, password = token.decode().split("\0")
        if identity or self._broker.users.get(name) != password:
            raise Refused("Authentication failed: Invalid username or password")
        return self._complete()

    def _bearer(self, token: bytes) -> bytes:
        if token == b"\x01":
            raise Refused('{"status":"invalid_token"}')
        if token != b"n,,\x01auth=Bearer good\x01\x01":
            return b'{"status":"invalid_token"}'
        return self._complete()

    def _scram(self, name: str) -> Server:
        mechanism = ScramMechanism(name)
        users = self._broker.users
        server = mechanism.make_server(
            lambda user: mechanism.make_auth_info(users[user], iteration_count=4096)
        )
        steps = iter(
            (
                (server.set_client_first, server.get_server_first),
                (server.set_client_final, server.get_server_final),
            )
        )

        def step(token: bytes) -> bytes:
            receive, send = next(steps)
            try:
                receive(token.decode())
                answer: str = send()
            except (ScramException, KeyError) as error:
                raise Refused("Authentication failed during authentication") from error
            return answer.encode() + (self._complete() if answer.startswith("v=") else b"")

        return step


@asynccontextmanager
async def serving(broker: SaslBroker, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Yield the port. At the end every connection is closed."""
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, ssl=tls)
    try:
        async with asyncio.timeout(20):
            yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in broker.writers:
            writer.transport.abort()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

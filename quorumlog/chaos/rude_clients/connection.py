"""A connection to a broker that sends any request in any version, and records the exchange."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from quorumlog.chaos.history.exchanges import UNANSWERED, Exchange
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Request
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.sasl import SaslFailure
from quorumlog.wire.codec.schemas import decode_response, encode_request
from quorumlog.wire.io.sasl import NoToken, authenticate
from quorumlog.wire.io.security import PLAINTEXT, ConnectionSecurity, SaslLogin

TIMEOUT_S: Final = 3.0
_LENGTH_BYTES: Final = 4
_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
RAW: Final = "raw"  # the client id


class Answered(NamedTuple):
    """A request and its response; None: the connection ended, or the time was over."""

    exchange: Exchange
    response: Any


@dataclass(slots=True, eq=False)
class _Pending:
    request: Request[Any]
    exchange: Exchange
    future: asyncio.Future[Answered]


class RawConnection:
    """Sends requests without waiting for the responses before; `open` or `connect` makes it.

    malformed: the reason why a response is none of the protocol; the connection ended by it.
    versions: the versions that the broker supports, by API key.
    """

    def __init__(
        self, node: int, number: int, now_ns: Callable[[], int], client_id: str, timeout_s: float
    ) -> None:
        self.node: Final = node
        self.number: Final = number
        self.malformed = ""
        self.is_closed = False
        self.versions: dict[int, range] = {}
        self._now_ns: Final = now_ns
        self._client_id: Final = client_id
        self._timeout_s: Final = timeout_s
        self._since_ns = now_ns()
        self._place = 0
        self._pending: Final[deque[_Pending]] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        node: int,
        number: int,
        now_ns: Callable[[], int],
        client_id: str = RAW,
        timeout_s: float = TIMEOUT_S,
        security: ConnectionSecurity = PLAINTEXT,
    ) -> "RawConnection | None":
        """Connect, by TLS if `security` has it, and send nothing yet; None: the port is closed."""
        connection = cls(node, number, now_ns, client_id, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                options = security.transport_options(host)
                reader, writer = await asyncio.open_connection(host, port, **options)
        except OSError:  # TimeoutError is one
            return None
        connection._writer = writer
        connection._reading = asyncio.create_task(connection._read(reader))
        return connection

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        node: int,
        number: int,
        now_ns: Callable[[], int],
        rng: Random,
        security: ConnectionSecurity = PLAINTEXT,
    ) -> "RawConnection | None":
        """Connect, request the versions in one that `rng` draws, and authenticate.

        None: no broker answers, or it refuses the login: a broker that starts may lack credentials.
        """
        connection = await cls.connect(
            host, port, node=node, number=number, now_ns=now_ns, security=security
        )
        if connection is None:
            return None
        version = rng.choice(ApiVersionsRequest.VERSIONS)
        answered = await connection.exchange(
            ApiVersionsRequest(client_software_name=RAW, client_software_version="0"), version
        )
        if answered.response is None or answered.response.error_code:
            await connection.close()
            return None
        connection.versions = {
            api.api_key: range(api.min_version, api.max_version + 1)
            for api in answered.response.api_keys
        }
        if security.login is not None and not await connection.log_in(security.login):
            await connection.close()
            return None
        return connection

    async def log_in(self, login: SaslLogin) -> bool:
        """Authenticate in the newest versions; return whether the broker accepts the login."""

        async def send(request: Request[Any]) -> Any:
            theirs = self.versions.get(request.API_KEY, range(0))
            version = max((one for one in request.VERSIONS if one in theirs), default=None)
            if version is None:
                raise SaslFailure("the listener has no SASL")
            response = (await self.exchange(request, version)).response
            if response is None:
                raise ConnectionResetError
            return response

        try:
            await authenticate(send, login)
        except (SaslFailure, NoToken, ConnectionResetError):
            return False
        return True

    def send(self, request: Request[Any], version: int) -> asyncio.Future[Answered]:
        """Send a request; its future returns the response, or None when the connection ends."""
        exchange = self._write(request, version)
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        if self.is_closed:
            future.set_result(Answered(exchange, None))
        else:
            self._pending.append(_Pending(request, exchange, future))
        return future

    def send_silently(self, request: Request[Any], version: int) -> Exchange:
        """Send a request that gets no response."""
        return self._write(request, version)

    async def exchange(self, request: Request[Any], version: int) -> Answered:
        """Send a request and await its response."""
        return await self.within(self.send(request, version))

    async def within(self, future: asyncio.Future[Answered]) -> Answered:
        """Await a response for `timeout_s`; after that the connection is closed."""
        await asyncio.wait((future,), timeout=self._timeout_s)
        if not future.done():
            self._end()
        return future.result()

    async def close(self) -> None:
        """Close; the requests without a response get None."""
        self._end()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))

    def _write(self, request: Request[Any], version: int) -> Exchange:
        self._place += 1
        exchange = Exchange(
            node=self.node,
            connection=self.number,
            since_ns=self._since_ns,
            place=self._place,
            sent_ns=self._now_ns(),
            answered_ns=UNANSWERED,
            version=version,
        )
        writer = self._writer
        if not self.is_closed and writer is not None and not writer.is_closing():
            frame = encode_request(
                request, api_version=version, correlation_id=self._place, client_id=self._client_id
            )
            writer.write(b"".join(frame))
        return exchange

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read responses until the connection ends."""
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
                self._receive(await reader.readexactly(min(size, _FRAME_BYTES_MAX)))
        except MalformedFrame as error:
            self.malformed = str(error)
        except (OSError, EOFError):
            pass  # the requests without a response get None
        finally:
            self._end()

    def _receive(self, frame: bytes) -> None:
        """Give a response to the oldest request without one. Raises MalformedFrame."""
        if not self._pending:
            raise MalformedFrame("a response to no request")
        pending = self._pending[0]
        exchange = pending.exchange
        correlation_id, response = decode_response(pending.request.API_KEY, exchange.version, frame)
        if correlation_id != exchange.place:
            raise MalformedFrame(f"a response to {correlation_id}, not to {exchange.place}")
        self._pending.popleft()
        if exchange.place == 1:
            self._since_ns = self._now_ns()
        if not pending.future.done():
            answered = exchange._replace(answered_ns=self._now_ns())
            pending.future.set_result(Answered(answered, response))

    def _end(self) -> None:
        self.is_closed = True
        if self._writer is not None:
            self._writer.close()
        while self._pending:
            pending = self._pending.popleft()
            if not pending.future.done():
                pending.future.set_result(Answered(pending.exchange, None))

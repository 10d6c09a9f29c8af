"""One connection to a Kafka broker, for clients, followers and administrators.

A broker responds to the requests of one connection in order, so a response belongs to the oldest
request without one; if its correlation id differs, the connection is closed. As in Kafka's own
client, a request that times out closes the connection: later requests on it would wait behind the
slow one, and a new connection may avoid the problem.

A session with a limited lifetime is authenticated again on the same connection, before it ends:
requests that come meanwhile wait, those in flight get their responses.
Source: KIP-35 and KIP-511 (the versions that the broker supports), KIP-368 (re-authentication).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

from quorumlog.addresses import address_text
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Buffer, Request, Response
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from quorumlog.wire.codec.schemas import (
    RequestHeader,
    UnsupportedVersion,
    decode_response,
    encode_request,
)
from quorumlog.wire.io.connection_errors import (
    AuthenticationFailed,
    ConnectionLost,
    RequestTimedOut,
    named,
    not_connected,
)
from quorumlog.wire.io.frames import FrameProtocol
from quorumlog.wire.io.security import PLAINTEXT, ConnectionSecurity, SaslLogin

__all__ = [
    "AuthenticationFailed",
    "ConnectionLost",
    "KafkaConnection",
    "RequestTimedOut",
    "UnsupportedVersion",
]

IN_FLIGHT_MAX: Final = 64
REQUEST_TIMEOUT_MS: Final = 30_000
CLOSE_TIMEOUT_MS: Final = 500
SOFTWARE_NAME: Final = "quorumlog"
NODE_SOFTWARE_NAME: Final = "quorumlog-node"  # of the brokers' connections to each other
SOFTWARE_VERSION: Final = "0.1"
_CORRELATION_ID_MASK: Final = 0x7FFFFFFF
_new_tuple: Final = tuple.__new__  # the class of a NamedTuple costs three times as much

ResponseT = TypeVar("ResponseT", bound=Response)


Done = Callable[[Response | Exception], None]
"""Receives the response to a request, or the error. It must raise no exception."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that waits for its turn to be sent, then for its response."""

    header: RequestHeader
    frame: list[Buffer]  # emptied when it is sent
    deadline_s: float  # by the loop's clock
    done: "Done"
    is_kept: bool  # its response outlives the call of `done`

    def finish(self, outcome: "Response | Exception") -> None:
        """Pass on the outcome, the first one only."""
        done, self.done = self.done, _ignore
        done(outcome)


class _ClientProtocol(FrameProtocol):
    """Passes frames, and the end of the connection, to its owner."""

    def __init__(self, owner: "KafkaConnection") -> None:
        super().__init__()
        self._owner: Final = owner

    def frame_received(self, frame: memoryview) -> None:
        self._owner.handle_frame(frame)

    def connection_closed(self, error: Exception | None) -> None:
        self._owner.handle_closed(error)


class KafkaConnection:
    """Sends requests and returns their responses. `open` creates it; `close` or the peer ends it.

    Invariants:
      1. At most `in_flight_max` requests wait for a response; further callers wait in their order.
      2. Requests are written in the order in which `send` was called.
      3. When `closed` is done, no request waits any more and no timer is left.
      4. For the throttle time of a response no request is sent, and none times out (KIP-219).
    """

    def __init__(
        self, *, client_id: str | None, request_timeout_ms: int, in_flight_max: int
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._protocol: Final = _ClientProtocol(self)
        self._client_id: Final = client_id
        self._request_timeout_ms: Final = request_timeout_ms
        self._in_flight_max: Final = in_flight_max
        self._limit = in_flight_max  # 0 while the connection authenticates again
        self._pending: Final[deque[_Pending]] = deque()
        self._waiting: Final[deque[_Pending]] = deque()
        self._held: list[list[Buffer]] = []  # frames without a response, while `_limit` is 0
        self._correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None  # of the earliest deadline, or before it
        self._rings_at_s = 0.0
        self._renewal: asyncio.TimerHandle | None = None  # of the session
        self._renewing: asyncio.Task[None] | None = None
        self._throttled: asyncio.TimerHandle | None = None  # rings at the end of a throttle time
        self._versions: dict[int, range] = {ApiVersionsRequest.API_KEY: ApiVersionsRequest.VERSIONS}
        self._chosen: dict[int, int] = {}  # the version of each request that was sent
        self.finalized_features: dict[str, int] = {}
        """The finalized level of each of the cluster's features (KIP-584), when it connected."""
        self.closed: Final[asyncio.Future[Exception | None]] = self._loop.create_future()
        """Done when the connection has ended; the result is the error, None after a close."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str | None,
        software_name: str = SOFTWARE_NAME,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        in_flight_max: int = IN_FLIGHT_MAX,
        security: ConnectionSecurity | None = None,
    ) -> "KafkaConnection":
        """Connect, and request the versions that the broker supports for this software (KIP-511).

        `security`: None: PLAINTEXT. With TLS, the certificate must be for `host`, if the context
        checks it. Raises ConnectionLost (also if no process listens), AuthenticationFailed
        or RequestTimedOut.
        """
        security = security or PLAINTEXT
        connection = cls(
            client_id=client_id, request_timeout_ms=request_timeout_ms, in_flight_max=in_flight_max
        )
        try:
            async with asyncio.timeout(request_timeout_ms / 1000):
                await connection._loop.create_connection(
                    lambda: connection._protocol, host, port, **security.transport_options(host)
                )
        except TimeoutError as error:
            address = address_text(host, port)
            raise RequestTimedOut(f"no connection to {address} in time") from error
        # An invalid name or port; or the interpreter exits, so that no thread can resolve names.
        except (OSError, ValueError, OverflowError, RuntimeError) as error:
            raise not_connected(host, port, error, security) from error
        try:
            await connection._learn_versions(software_name)
            if security.login is not None:
                await connection._authenticate(security.login)
        except BaseException as error:
            connection._protocol.abort()
            if security.tls is not None and type(error) is ConnectionLost:
                cause = error.__cause__ or error
                raise not_connected(host, port, cause, security) from cause
            raise
        return connection

    @property
    def api_versions(self) -> Mapping[int, range]:
        """The versions that the broker supports, by API key."""
        return self._versions

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for a response."""
        return len(self._pending)

    @property
    def waits_since_s(self) -> float | None:
        """When the oldest unanswered `request` was sent, by the loop's clock; None: none is."""
        if not self._pending:
            return None
        return self._pending[0].deadline_s - self._request_timeout_ms / 1000

    def version_for(self, request: type[Request[Any]] | Request[Any]) -> int:
        """Return the highest version that both sides support. Raises UnsupportedVersion."""
        theirs = self._versions.get(request.API_KEY, range(0))
        version = min(request.VERSIONS[-1], theirs.stop - 1)
        if version not in theirs or version not in request.VERSIONS:
            header = RequestHeader(request.API_KEY, version, -1, self._client_id)
            raise UnsupportedVersion(header)
        return version

    async def send(
        self,
        request: Request[ResponseT],
        *,
        version: int | None = None,
        timeout_ms: float | None = None,
    ) -> ResponseT:
        """Send `request` and return its response.

        If the caller is cancelled, the request stays in flight and its response is discarded.
        Raises UnsupportedVersion and UnencodableMessage (the request was not sent), ConnectionLost
        (also for a malformed response) and RequestTimedOut; the timeout includes the wait for other
        requests.
        """
        header, frame = self._encode(request, version)
        wait_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        answer: asyncio.Future[Response] = self._loop.create_future()
        deadline_s = self._loop.time() + wait_ms / 1000
        pending = _Pending(header, frame, deadline_s, partial(_settle, answer), is_kept=True)
        self._start(pending)
        try:
            return cast(ResponseT, await answer)
        except asyncio.CancelledError:
            self._forget_unsent(pending)
            raise

    def request(self, request: Request[Any], done: Done) -> None:
        """Send `request`, and call `done` once, within the callback of the socket or the timer.

        `done` receives the response, whose records are views that are valid during the call, or
        ConnectionLost or RequestTimedOut. Raises UnsupportedVersion, UnencodableMessage and
        ConnectionLost: the request was not sent.
        """
        header, frame = self._encode(request, None)
        deadline_s = self._loop.time() + self._request_timeout_ms / 1000
        self._start(_Pending(header, frame, deadline_s, done, False))

    def _start(self, pending: _Pending) -> None:
        if self._throttled is not None:
            pending.deadline_s += max(0.0, self._throttled.when() - self._loop.time())
        if self._timer is None or pending.deadline_s < self._rings_at_s:
            self._arm(pending.deadline_s)
        if self._waiting or self._throttled or len(self._pending) >= self._limit:
            self._waiting.append(pending)
            self._send_waiting()
        else:
            self._pending.append(pending)
            self._protocol.write(pending.frame)
            pending.frame = []

    def send_no_reply(self, request: Request[Any], *, version: int | None = None) -> None:
        """Send a request without a response (Produce with acks=0). Never blocks; see `drain`.

        It does not count as in flight, and overtakes the requests that wait for their turn.
        Raises UnsupportedVersion, UnencodableMessage and ConnectionLost.
        """
        _, frame = self._encode(request, version)
        if self._limit:
            self._protocol.write(frame)
        else:
            self._held.append(frame)

    async def drain(self) -> None:
        """Wait until the broker has received most of the written bytes, or the connection closes.

        Raises RequestTimedOut, and closes the connection, if the broker does not read in time.
        """
        try:
            async with asyncio.timeout(self._request_timeout_ms / 1000):
                if self._renewing is not None:
                    await asyncio.wait([self._renewing])
                await self._protocol.drain()
        except TimeoutError as error:
            timed_out = RequestTimedOut("the broker does not read the connection")
            self._protocol.abort(timed_out)
            raise timed_out from error

    async def close(self) -> None:
        """Close, and wait until the connection has ended.

        Written bytes are sent first, if the broker reads them soon and the caller is not cancelled.
        Requests without a response raise ConnectionLost.
        """
        self._protocol.close()
        try:
            await asyncio.wait([self.closed], timeout=CLOSE_TIMEOUT_MS / 1000)
        finally:
            if not self.closed.done():
                self._protocol.abort()
        await asyncio.shield(self.closed)

    async def _learn_versions(self, software_name: str) -> None:
        """Send ApiVersions in its newest version; a broker that lacks it responds in version 0."""
        request = ApiVersionsRequest(
            client_software_name=software_name, client_software_version=SOFTWARE_VERSION
        )
        response: ApiVersionsResponse = await self.send(request)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self._take_versions(response)
            self._versions.setdefault(request.API_KEY, range(1))  # absent before KIP-511
            try:
                response = await self.send(request)
            except UnsupportedVersion as error:
                raise ConnectionLost("client and broker share no version of ApiVersions") from error
        if response.error_code != ErrorCode.NONE:
            raise ConnectionLost(f"ApiVersions was refused with {named(response.error_code)}")
        self._take_versions(response)

    def _take_versions(self, response: ApiVersionsResponse) -> None:
        self._chosen.clear()
        self._versions = {
            api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys
        }
        self.finalized_features = {
            feature.name: feature.max_version_level for feature in response.finalized_features
        }

    async def _authenticate(self, login: SaslLogin) -> None:
        """Authenticate, and plan to do it again before the session ends (KIP-368)."""
        from quorumlog.wire.codec.sasl import SaslFailure  # few connections have SASL
        from quorumlog.wire.io import sasl

        try:
            lifetime_ms = await sasl.authenticate(self._exchange, login)
        except SaslFailure as failure:
            raise AuthenticationFailed(str(failure)) from failure
        except sasl.NoToken as failure:
            raise ConnectionLost(str(failure)) from failure
        if lifetime_ms and not self._protocol.is_closing:
            delay_s = sasl.renewal_delay_s(lifetime_ms)
            self._renewal = self._loop.call_later(delay_s, self._renew, login)

    async def _exchange(self, request: Request[ResponseT]) -> ResponseT:
        """Send a request of the authentication, before all that wait."""
        header, frame = self._encode(request, None)
        answer: asyncio.Future[Response] = self._loop.create_future()
        since_s = self._loop.time() if self._throttled is None else self._throttled.when()
        deadline_s = since_s + self._request_timeout_ms / 1000
        pending = _Pending(header, [], deadline_s, partial(_settle, answer), is_kept=True)
        self._arm(deadline_s)
        self._pending.append(pending)
        self._protocol.write(frame)
        return cast(ResponseT, await answer)

    def _renew(self, login: SaslLogin) -> None:
        self._limit = 0
        self._renewing = self._loop.create_task(self._authenticate_again(login))

    async def _authenticate_again(self, login: SaslLogin) -> None:
        """Renew the session, then send the waiting requests; or close the connection."""
        try:
            await self._authenticate(login)
        except (ConnectionLost, RequestTimedOut) as error:
            self._protocol.abort(error)
        finally:
            self._renewing, self._limit = None, self._in_flight_max
            held, self._held = self._held, []
            for frame in held:
                self._protocol.write(frame)
            self._send_waiting()

    def _encode(
        self, request: Request[Any], version: int | None
    ) -> tuple[RequestHeader, list[Buffer]]:
        if self._protocol.is_closing:
            raise ConnectionLost("the connection is closed")
        if version is None:
            version = self._chosen.get(request.API_KEY)
            if version is None:
                version = self._chosen[request.API_KEY] = self.version_for(request)
        elif version not in request.VERSIONS:
            raise UnsupportedVersion(RequestHeader(request.API_KEY, version, -1, self._client_id))
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_ID_MASK
        fields = request.API_KEY, version, self._correlation_id, self._client_id
        frame = encode_request(
            request,
            api_version=version,
            correlation_id=self._correlation_id,
            client_id=self._client_id,
        )
        return _new_tuple(RequestHeader, fields), frame

    def _send_waiting(self) -> None:
        """Write waiting requests, oldest first, up to `in_flight_max`."""
        while self._waiting and self._throttled is None and len(self._pending) < self._limit:
            pending = self._waiting.popleft()
            self._pending.append(pending)
            self._protocol.write(pending.frame)
            pending.frame = []

    def _hold(self, throttle_ms: int) -> None:
        """Send nothing for so long: the broker does not read meanwhile."""
        until_s = now_s = self._loop.time()
        if self._throttled is not None:
            until_s = self._throttled.when()
        more_s = now_s + throttle_ms / 1000 - until_s
        if more_s <= 0:
            return
        for pending in (*self._pending, *self._waiting):
            pending.deadline_s += more_s
        if self._throttled is not None:
            self._throttled.cancel()
        self._throttled = self._loop.call_at(until_s + more_s, self._release)

    def _release(self) -> None:
        self._throttled = None
        self._send_waiting()

    def _forget_unsent(self, pending: _Pending) -> bool:
        """Remove `pending` from the queue; return False if it has been sent."""
        if pending not in self._waiting:
            return False
        self._waiting.remove(pending)
        return True

    def _arm(self, deadline_s: float) -> None:
        """Ring at this time or before. Nearly always the timer is set to ring before."""
        if self._timer is not None:
            if self._rings_at_s <= deadline_s:
                return
            self._timer.cancel()
        self._rings_at_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._ring)

    def _ring(self) -> None:
        """Handle the time-outs that are due, and set the timer for the others."""
        self._timer = None
        now_s = self._loop.time()
        for pending in (*self._pending, *self._waiting):
            if pending.deadline_s <= now_s:
                self._handle_timeout(pending)
        left = [pending.deadline_s for pending in (*self._pending, *self._waiting)]
        if left and not self._protocol.is_closing:
            self._arm(min(left))

    def _handle_timeout(self, pending: _Pending) -> None:
        request = pending.header.label
        was_sent = not self._forget_unsent(pending)
        pending.finish(RequestTimedOut(f"no answer to {request} in time"))
        if was_sent:
            self._protocol.abort(RequestTimedOut(f"no answer to {request} in time"))

    def handle_frame(self, frame: memoryview) -> None:
        """Handle a response from the protocol: it belongs to the oldest request in flight."""
        if not self._pending:
            self._protocol.abort(MalformedFrame("an answer to no request"))
            return
        pending = self._pending[0]
        header, data = pending.header, bytes(frame) if pending.is_kept else frame
        try:
            correlation_id, response = decode_response(header.api_key, header.api_version, data)
        except MalformedFrame as error:
            self._protocol.abort(error)
            return
        if correlation_id != header.correlation_id:
            mismatch = f"the answer to {correlation_id}, not to {header.correlation_id}"
            self._protocol.abort(MalformedFrame(mismatch))
            return
        self._pending.popleft()
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        if throttle_ms > 0:
            self._hold(throttle_ms)
        pending.finish(response)
        if self._waiting:
            self._send_waiting()

    def handle_closed(self, error: Exception | None) -> None:
        """Fail all requests: the protocol reports the end of the connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewal is not None:
            self._renewal.cancel()
        if self._throttled is not None:
            self._throttled.cancel()
            self._throttled = None
        for pending in (*self._pending, *self._waiting):
            lost = ConnectionLost(f"the connection was lost: {error or 'closed'}")
            lost.__cause__ = error
            pending.finish(lost)
        self._pending.clear()
        self._waiting.clear()
        if not self.closed.done():  # a waiter may have cancelled it
            self.closed.set_result(error)


def _settle(answer: "asyncio.Future[Response]", outcome: Response | Exception) -> None:
    if answer.done():
        return  # its caller was cancelled
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


def _ignore(_outcome: Response | Exception) -> None:
    """Drop an outcome after the first."""

"""Connections to the control listener whose senders have not proved that they are cluster nodes.

Each costs a file handle, and a node without handles cannot serve its clients. So there are few, and
the head of a request must arrive soon.
docs/decisions/0039-limits.md
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

from aiohttp import web

from quorumlog.clock import monotonic_ms
from quorumlog.invariants import some
from quorumlog.lasting_condition import LastingCondition
from quorumlog.metadata_quorum.io.control_tls import ControlTls, role_of

HEAD_S: Final = 10.0
STRANGERS_MAX: Final = 100
_logger: Final = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Strangers:
    """All connections of one listener.

    1. A request's head is whole within HEAD_S of its first byte, the first request's within HEAD_S
       of the connection; otherwise the connection is closed.
    2. At most STRANGERS_MAX connections belong to strangers: one more closes the oldest.
    """

    def __init__(self) -> None:
        self._strangers: Final[dict[asyncio.BaseTransport, None]] = {}  # in the order of arrival
        self._connections: Final[dict[asyncio.BaseTransport, _Connection]] = {}

    def __len__(self) -> int:
        return len(self._strangers)

    def watched(self, server: web.Server) -> Callable[[], asyncio.Protocol]:
        """Return a factory of watched protocols, each around a protocol of `server`."""
        return lambda: _Connection(self, server())

    def admit(self, request: web.Request) -> None:
        """Stop counting the sender as a stranger: it belongs to the cluster."""
        if request.transport is not None:
            self._strangers.pop(request.transport, None)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Handle a request, whose head is whole: stop the timer of its connection."""
        connection = request.transport and self._connections.get(request.transport)
        if not connection:
            return await handler(request)
        connection.begin()
        try:
            return await handler(request)
        finally:
            connection.end()

    def opened(self, transport: asyncio.BaseTransport, connection: "_Connection") -> None:
        """Count a connection; close the oldest stranger if there are too many."""
        self._connections[transport] = connection
        self._strangers[transport] = None
        if len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            self._connections[oldest].abort()

    def closed(self, transport: asyncio.BaseTransport) -> None:
        """Remove a closed connection from the counts."""
        self._strangers.pop(transport, None)
        self._connections.pop(transport, None)


class _Connection(asyncio.Protocol):
    """Passes all calls to the server's protocol, and limits the time of a request's head."""

    def __init__(self, strangers: Strangers, inner: asyncio.Protocol) -> None:
        self._strangers: Final = strangers
        self._inner: Final = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None  # while a head is due
        self._requests = 0  # under way

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._await_head()
        self._inner.connection_made(transport)
        self._strangers.opened(transport, self)

    def data_received(self, data: bytes) -> None:
        if not self._requests and self._timer is None:
            self._await_head()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        if self._transport is not None:
            self._strangers.closed(self._transport)
        self._inner.connection_lost(exc)

    def begin(self) -> None:
        """Handle the start of a request: its head is whole."""
        self._requests += 1
        self._forget_timer()

    def end(self) -> None:
        """Handle the end of a request."""
        self._requests -= 1

    def abort(self) -> None:
        """Close the connection."""
        self._forget_timer()
        if self._transport is not None:
            self._transport.abort()

    def _await_head(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEAD_S, self.abort)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WatchedSite(web.BaseSite):
    """A site of a runner whose connections are watched."""

    def __init__(
        self,
        runner: web.AppRunner,
        strangers: Strangers,
        *,
        tls: ControlTls | None = None,
        **where: Any,
    ) -> None:
        """`where`: `sock`, or `host` and `port`, as `create_server` takes them.

        `tls`: None: plain text; with it, only peers with a role are served, unless it
        `serves_strangers`.
        """
        super().__init__(runner)
        self._tls: Final = tls
        self._strangers: Final = strangers
        self._where: Final = where
        self._failures: Final = LastingCondition(_logger)

    @property
    def name(self) -> str:
        """The name of the site in a runner's list."""
        return "control listener"

    async def start(self) -> None:
        """Listen. Raises OSError."""
        await super().start()
        server = some(self._runner.server, "the runner is set up")
        watched = self._strangers.watched(server)
        if self._tls is not None:
            from quorumlog.wire.io.tls_listener import TlsListener  # most nodes have no TLS

            listener = self._where.get("sock") or socket.create_server(
                (self._where["host"], self._where["port"]), backlog=self._backlog
            )
            self._server = TlsListener(  # type: ignore[assignment]  # it suffices for a site
                listener, self._tls.server, partial(self._accept, watched), self._note_failed
            )
            return
        self._server = await asyncio.get_running_loop().create_server(
            watched, backlog=self._backlog, **self._where
        )

    def _accept(
        self, watched: Callable[[], asyncio.Protocol], transport: asyncio.Transport
    ) -> asyncio.Protocol:
        """Return the protocol of a connection; close it if it is not served."""
        serves_all = self._tls is not None and self._tls.serves_strangers
        if serves_all or role_of(transport) is not None:
            return watched()
        self._note_failed(
            transport.get_extra_info("peername"), "its certificate is no node's or operator's"
        )
        transport.abort()
        return asyncio.Protocol()

    def _note_failed(self, peer: Any, reason: str) -> None:
        self._failures.note(
            monotonic_ms(), f"control listener: refused {peer[0]}: {reason}", reason
        )

"""Listens on a socket, and serves each connection once its TLS handshake is complete.

A connection in its handshake holds no protocol object, and so no slot of a limit. asyncio's own
listeners make the protocol first, and report no failed handshake.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import ssl

HANDSHAKE_S: Final = 10.0
SHUTDOWN_S: Final = 5.0  # the peer's answer to the end of a connection
HANDSHAKES_MAX: Final = 1000
ACCEPT_PAUSE_S: Final = 1.0  # without a file handle, as asyncio pauses
_HTTP: Final = "the peer speaks HTTP, this listener TLS"
_PLAIN: Final = "this looks like a plain text client on a TLS listener: its bytes are not TLS"
_REASONS: Final = {  # by OpenSSL's name of an error
    "HTTP_REQUEST": _HTTP,
    "HTTPS_PROXY_REQUEST": _HTTP,
    "WRONG_VERSION_NUMBER": _PLAIN,
    "PACKET_LENGTH_TOO_LONG": _PLAIN,
    "RECORD_LAYER_FAILURE": _PLAIN,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer has sent no certificate, which is required here",
}
_logger: Final = logging.getLogger(__name__)

Failed = Callable[[tuple[Any, ...], str], None]
"""Receives the address of a peer, and the reason for which it is not served."""


class TlsListener:
    """A listening socket with TLS; an `asyncio.Server`, as far as its users need one.

    Invariants:
    1. `accept` is called once for each complete handshake, before any byte is read.
    2. At most HANDSHAKES_MAX connections are in their handshakes: one more closes the oldest of the
       address that has the most.
    3. A handshake ends within HANDSHAKE_S.
    """

    def __init__(
        self,
        bound: socket.socket,
        context: "ssl.SSLContext",
        accept: Callable[[asyncio.Transport], asyncio.BaseProtocol],
        failed: Failed,
    ) -> None:
        """Accept from `bound`, which listens. A new `context` is for later handshakes.

        `accept`: returns the protocol of a connection; it may abort the transport.
        """
        self.context = context
        self.sockets: Final = (bound,)
        self._accept: Final = accept
        self._failed: Final = failed
        self._loop: Final = asyncio.get_running_loop()
        self._handshakes: Final[dict[asyncio.Task[None], str]] = {}
        """The hosts of the connections, oldest first."""
        bound.setblocking(False)
        self._accepting: Final = self._loop.create_task(self._serve(bound))

    @property
    def handshakes(self) -> int:
        """The number of connections in their handshakes."""
        return len(self._handshakes)

    def close(self) -> None:
        """Accept no connection any more, and close those in their handshakes."""
        self._accepting.cancel()
        for task in self._handshakes:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the socket is closed."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)
        self.sockets[0].close()  # the task that accepts may not have begun

    async def _serve(self, bound: socket.socket) -> None:
        with bound:
            while True:
                try:
                    connection, address = await self._loop.sock_accept(bound)
                except OSError as error:
                    _logger.warning("cannot accept a connection: %s", error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                    continue
                if len(self._handshakes) >= HANDSHAKES_MAX:
                    self._end_one()
                task = self._loop.create_task(self._shake_hands(connection, address))
                self._handshakes[task] = address[0]
                task.add_done_callback(partial(self._over, connection))
                # A waiting connection is accepted without a turn of the loop: many would stop it.
                await asyncio.sleep(0)

    def _end_one(self) -> None:
        """End a handshake of the host that has the most: it takes no room of other hosts."""
        [(busiest, _)] = Counter(self._handshakes.values()).most_common(1)
        task = next(task for task, host in self._handshakes.items() if host == busiest)
        del self._handshakes[task]  # it is over with another turn of the loop
        task.cancel()

    def _over(self, connection: socket.socket, task: "asyncio.Task[None]") -> None:
        self._handshakes.pop(task, None)
        if task.cancelled():
            connection.close()  # the task may not have begun
        elif task.exception() is not None:
            _logger.error("unexpected error of a TLS handshake", exc_info=task.exception())

    async def _shake_hands(self, connection: socket.socket, address: tuple[Any, ...]) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: _InHandshake(self._accept),
                connection,
                ssl=self.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:  # of the socket, or of OpenSSL
            reason = reason_of(error)
            if reason is not None:
                self._failed(address, reason)


class _InHandshake(asyncio.Protocol):
    """In place of the protocol of a connection, until its handshake is complete."""

    def __init__(self, accept: Callable[[asyncio.Transport], asyncio.BaseProtocol]) -> None:
        self._accept: Final = accept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        ready = cast(asyncio.Transport, transport)
        protocol = self._accept(ready)
        ready.set_protocol(protocol)
        protocol.connection_made(ready)


def reason_of(error: OSError) -> str | None:
    """Return why a handshake failed; None: the peer has left, such as a probe of the port."""
    import ssl  # a node without TLS does not load it

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        words = (error.reason or str(error)).lower().replace("_", " ")
        return _REASONS.get(error.reason or "") or f"the TLS handshake fails: {words}"
    if isinstance(error, ConnectionAbortedError):  # of asyncio's limit
        return f"no TLS handshake within {HANDSHAKE_S:g} s"
    return None if isinstance(error, ConnectionError) else f"the TLS handshake fails: {error}"

"""One end of a connection: an asyncio transport on the in-memory network.

It makes the same callbacks, in the same order, as asyncio's socket transport; a test runs the same
scripts on both.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from quorumlog.chaos.network.splitters import Message, Piece, Splitter
from quorumlog.chaos.node_simulation.process import Process


class Stream:
    """The bytes of one direction of a connection, on their way to the link.

    late_s returns the delay of a message and of all bytes after it; None: they are lost. shape
    returns the pieces to pass on in the place of the written ones; held: the bytes that it holds.
    """

    def __init__(
        self,
        splitter: Splitter,
        late_s: Callable[[Message], float | None],
        shape: Callable[[list[Piece]], list[Piece]] | None = None,
        held: Callable[[], bytes] = bytes,
    ) -> None:
        self._splitter: Final = splitter
        self._shape: Final = shape
        self._held: Final = held
        self._late_s: Final = late_s
        self._is_lost = False
        self._waiting_bytes = 0  # written, and neither passed on nor counted as lost

    def feed(self, data: bytes) -> list[tuple[float, bytes]]:
        """Add written bytes; return (delay in s, bytes) of the parts to pass on."""
        self._waiting_bytes += len(data)
        if self._is_lost:
            return []
        parts: list[tuple[float, list[bytes | memoryview]]] = [(0.0, [])]
        pieces = self._splitter.feed(data)
        for piece in pieces if self._shape is None else self._shape(pieces):
            if piece.message is not None:
                late_s = self._late_s(piece.message)
                if late_s is None:
                    self._is_lost = True
                    break
                if late_s:
                    parts.append((late_s, []))
            self._waiting_bytes -= len(piece.content)
            parts[-1][1].append(piece.content)
        return [(late_s, b"".join(contents)) for late_s, contents in parts if contents]

    def rest(self) -> bytes:
        """Return the bytes of an incomplete message, because no more bytes follow."""
        if self._is_lost:
            return b""
        self._waiting_bytes = 0
        return self._held() + self._splitter.rest()

    def lost_bytes(self) -> int:
        """Return the number of bytes lost since the last call; below 0 if a change added more."""
        held = 0 if self._is_lost else len(self._held()) + len(self._splitter.rest())
        lost, self._waiting_bytes = self._waiting_bytes - held, held
        return lost


if TYPE_CHECKING:
    from quorumlog.chaos.node_simulation.network import Network


class Mark:
    """A segment without bytes."""

    def __init__(self, name: str) -> None:
        self._name: Final = name

    def __repr__(self) -> str:
        return self._name


FIN: Final = Mark("fin")  # the last segment
RST: Final = Mark("rst")  # the connection is reset
Segment = bytes | Mark

HIGH_WATER: Final = 64 * 1024 + 256 * 1024  # the transport's buffer and the socket buffers
LOW_WATER: Final = 256 * 1024


class Endpoint(asyncio.Transport):
    """A transport. The network calls `arrive`, `taken` and `owner_died`.

    Invariants:
      1. The protocol is called in the context of its process, and never from within its own call.
      2. `connection_lost` is called once, as the last callback.
    """

    def __init__(
        self,
        network: "Network",
        process: Process | None,
        here: tuple[str, int],
        there: tuple[str, int],
        port: int,
    ) -> None:
        super().__init__({"peername": there, "sockname": here})
        self.network: Final = network
        self.process: Final = process
        self.here: Final = here
        self.there: Final = there
        self.port: Final = port  # of the side that accepted
        self.peer: Endpoint = self
        self.stream: Stream | None = None  # where rules may pick messages
        self.arrives: Callable[[bytes], None] | None = None  # reads bytes that arrive at the peer
        self.leaves: Callable[[bytes], None] | None = None  # reads bytes that are sent from here
        self.protocol: Any = None
        self.on_way: Final = deque[Segment]()  # from here to the peer
        self.last_arrival_s = 0.0
        self.unread_bytes = 0  # sent from here, and not yet read by the peer
        self.is_over = False  # the connection has ended for this end
        self._context: Context | None = None
        self._arrived: Final = deque[Segment]()
        self._is_closing = self._is_pausing = self._has_eof = False
        self._is_read_paused = self._is_read_due = False

    @property
    def has_dialled(self) -> bool:
        """True if this end opened the connection."""
        return self.here[1] != self.port

    def attach(
        self, protocol: Any, context: Context, factory: Callable[[], Any] | None = None
    ) -> None:
        """Set the endpoint's protocol; with `factory`, create it later, in the context."""
        self.protocol, self._context = protocol, context
        if factory is not None:
            self._soon(self._accepted, factory)
        else:
            protocol.connection_made(self)
            self._begin()

    def _accepted(self, factory: Callable[[], Any]) -> None:
        self.protocol = factory()
        self.protocol.connection_made(self)
        self._begin()

    def _begin(self) -> None:
        if self.is_over:  # it was reset before the process accepted it
            self._soon(self.protocol.connection_lost, _reset())
        else:
            self._read_soon()

    # --- asyncio.Transport ---

    def write(self, data: Any) -> None:
        """See asyncio."""
        if self._has_eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_closing or self.is_over or not len(data):
            return
        self.unread_bytes += len(data)
        self.network.send(self, bytes(data))
        if self.unread_bytes > HIGH_WATER and not self._is_pausing:
            self._is_pausing = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """See asyncio."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return True

    def write_eof(self) -> None:
        """See asyncio."""
        if not (self._is_closing or self._has_eof or self.is_over):
            self._has_eof = True
            self.network.send(self, FIN)

    def get_write_buffer_size(self) -> int:
        """See asyncio: the bytes beyond the socket buffers."""
        return max(0, self.unread_bytes - LOW_WATER)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: all connections have the same limits."""

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closing or self.is_over

    def is_reading(self) -> bool:
        """See asyncio."""
        return not self._is_read_paused and not self.is_closing()

    def pause_reading(self) -> None:
        """See asyncio."""
        self._is_read_paused = True

    def resume_reading(self) -> None:
        """See asyncio."""
        self._is_read_paused = False
        self._read_soon()

    def get_protocol(self) -> Any:
        """See asyncio."""
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        """See asyncio."""
        self.protocol = protocol

    def close(self) -> None:
        """See asyncio: buffered bytes are still sent."""
        if self._is_closing or self.is_over:
            return
        self._is_closing = True
        if not self._is_pausing:  # else after the peer has read enough
            self._end(None)

    def abort(self) -> None:
        """See asyncio."""
        if not self.is_over:
            self._is_closing = True
            self._end(None)

    # --- for the network ---

    def arrive(self, segment: Segment) -> None:
        """Receive a segment; the protocol is called in the next turn at the earliest."""
        if self.is_over:
            if isinstance(segment, bytes):  # no process can read it
                self.network.send(self, RST)
        elif segment is RST:
            self._arrived.clear()
            self._lost(_reset())
        else:
            self._arrived.append(segment)
            self._read_soon()

    def taken(self, size: int) -> None:
        """Count `size` sent bytes as read by the peer."""
        self.unread_bytes -= size
        if self._is_pausing and self.unread_bytes <= LOW_WATER:
            self._is_pausing = False
            if self._is_closing:
                self._end(None)
            elif not self.is_over:
                self._soon(self.protocol.resume_writing)

    def owner_died(self) -> None:
        """Close the connection, as the system does for a dead process."""
        if not self.is_over:
            self._close_system_side()
            self.is_over = True

    # --- own ---

    def _soon(self, action: Callable[..., object], *args: Any) -> None:
        self.network.loop.call_soon(action, *args, context=self._context)

    def _end(self, error: Exception | None) -> None:
        self._close_system_side()
        self._lost(error)

    def _close_system_side(self) -> None:
        """Send FIN, or RST if received bytes were not read (RFC 2525)."""
        unread = any(isinstance(segment, bytes) for segment in self._arrived)
        if unread:
            self.network.send(self, RST)
        elif not self._has_eof:
            self.network.send(self, FIN)

    def _lost(self, error: Exception | None) -> None:
        self.is_over = True
        self.network.forget(self)
        if self.protocol is not None:
            self._soon(self.protocol.connection_lost, error)

    def _read_soon(self) -> None:
        if self._arrived and self.protocol is not None and not self._is_read_due:
            self._is_read_due = True
            self._soon(self._read)

    def _read(self) -> None:
        self._is_read_due = False
        try:
            self._read_all()
        except Exception as error:  # noqa: BLE001 - as asyncio: the connection ends
            said = {"message": "a protocol failed", "exception": error, "protocol": self.protocol}
            self.network.loop.call_exception_handler(said)
            if not self.is_over:
                self._is_closing = True
                self._end(error)

    def _read_all(self) -> None:
        while self._arrived and not self._is_read_paused and not self.is_closing():
            segment = self._arrived.popleft()
            if not isinstance(segment, bytes):
                if not self.protocol.eof_received():
                    self.close()
                return
            self.peer.taken(len(segment))
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                self._fill_buffers(segment)
            else:
                self.protocol.data_received(segment)

    def _fill_buffers(self, segment: bytes) -> None:
        left = memoryview(segment)
        while left:
            buffer = memoryview(self.protocol.get_buffer(-1))
            size = min(len(buffer), len(left))
            buffer[:size] = left[:size]
            left = left[size:]
            self.protocol.buffer_updated(size)


def _reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

"""Frames on a socket, for brokers and clients: four bytes of length, then as many bytes.

A connection reads into one buffer of its own, and a frame is a view into it: nothing is copied. A
length that is negative or over the limit closes the connection.
"""

import asyncio
import sys
from collections.abc import Sequence
from struct import Struct as Packer
from typing import Final, cast

from quorumlog.invariants import require
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Buffer

FRAME_MAX_BYTES: Final = 100 * 1024 * 1024  # Kafka's socket.request.max.bytes
BUFFER_BYTES: Final = 64 * 1024
KEEP_BYTES: Final = 4 * 1024 * 1024
"""A buffer that has grown beyond this is given back when it is empty."""
WRITELINES_NEVER_PAUSES: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (
    3,
    13,
) <= sys.version_info < (3, 13, 2)
"""CVE-2024-12254: in these versions only asyncio's `write` checks how much is not sent yet."""
_LENGTH: Final = Packer(">i")


class FrameProtocol(asyncio.BufferedProtocol):
    """One connection. Subclass it and override the hooks.

    Invariants:
      1. However the bytes arrive, the same frames are delivered in the same order.
      2. A view that `frame_received` got keeps its bytes until it returns, or, if it has called
         `pause_frames`, until `resume_frames` is called.
      3. The buffer is at most twice as large as what was received of the frame under way
         (and at least BUFFER_BYTES), whatever length the frame claims.
      4. No frame is delivered after `connection_closed`, or after `close` or `abort`.
    """

    def __init__(self, *, frame_max_bytes: int = FRAME_MAX_BYTES) -> None:
        self._frame_max_bytes: Final = frame_max_bytes
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._frames = self._buffer.toreadonly()
        self._start = self._end = 0  # what was received and not yet delivered
        self._is_paused = False
        self._is_closing = False
        self._failure: Exception | None = None
        self._drained: asyncio.Future[None] | None = None  # there while writing is paused

    # Hooks.

    def connection_opened(self) -> None:
        """Do what follows the start of the connection: it can be written to."""

    def frame_received(self, frame: memoryview) -> None:
        """Take one frame, without its length. The read-only view is valid during this call.

        An exception ends the connection: the event loop logs it and closes the socket.
        """
        raise NotImplementedError

    def connection_closed(self, error: Exception | None) -> None:
        """Do what follows the end of the connection. `error`: why; None: it was closed in order.

        MalformedFrame if the peer sent a frame of impossible length.
        """

    def writing_paused(self) -> None:
        """Send less: the peer does not take what was sent, which stays in memory until it does."""

    def writing_resumed(self) -> None:
        """Send again: the peer has taken nearly all of what waited."""

    # For the owner.

    @property
    def transport(self) -> asyncio.Transport:
        """The socket's transport, once the connection is open."""
        require(self._transport is not None, "the connection has been opened")
        return cast(asyncio.Transport, self._transport)

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be: what is written now goes nowhere."""
        return self._is_closing

    @property
    def is_writable(self) -> bool:
        """Whether what is written is taken soon; if not, `drain` waits for it."""
        return self._drained is None and not self._is_closing

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send buffers that follow each other. Never blocks; see `is_writable`.

        They must not change from now on: some may be sent later.
        """
        if self._is_closing:
            return
        if WRITELINES_NEVER_PAUSES:
            *buffers, last = buffers
            if buffers:
                self.transport.writelines(buffers)
            self.transport.write(last)
        else:
            self.transport.writelines(buffers)

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was written, or the connection is closed."""
        while self._drained is not None:
            await asyncio.shield(self._drained)

    def pause_frames(self) -> None:
        """Deliver no frame until `resume_frames`, and read no more from the socket."""
        if not self._is_paused:
            self._is_paused = True
            if not self._is_closing:
                self.transport.pause_reading()

    def resume_frames(self) -> None:
        """Go on, first with what has already been received: frames may arrive during this call."""
        if not self._is_paused:
            return
        self._is_paused = False
        self._deliver()
        if not (self._is_paused or self._is_closing):
            self.transport.resume_reading()

    def close(self, error: Exception | None = None) -> None:
        """Close once what was written is sent. `error` is handed to `connection_closed`."""
        if not self._is_closing:
            self._is_closing, self._failure = True, error
            self.transport.close()

    def abort(self, error: Exception | None = None) -> None:
        """Close at once and drop what was not sent."""
        self._is_closing = True
        self._failure = self._failure or error
        self.transport.abort()

    # For asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self.connection_opened()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: never empty (the room is made in `_make_room`)."""
        del sizehint  # a larger buffer costs nothing, and a smaller one a system call
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver the frames that are whole now."""
        self._end += nbytes
        self._deliver()

    def eof_received(self) -> None:
        """Close: half of a connection is of no use in this protocol."""
        self._is_closing = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner, and let go of the buffer."""
        self._is_closing = True
        self.resume_writing()
        self._start = self._end = 0
        self.connection_closed(self._failure or exc)

    def pause_writing(self) -> None:
        """Note that the transport's buffer is over its high mark."""
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self.writing_paused()

    def resume_writing(self) -> None:
        """Note that the transport's buffer is below its low mark."""
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)
            if not self._is_closing:
                self.writing_resumed()

    def _deliver(self) -> None:
        size = 0
        while not (self._is_paused or self._is_closing):
            start = self._start + _LENGTH.size
            if start > self._end:
                size = 0
                break
            (size,) = _LENGTH.unpack_from(self._buffer, self._start)
            if not 0 <= size <= self._frame_max_bytes:
                limit = self._frame_max_bytes
                message = f"a frame of {size} bytes (the limit is {limit}){_other_protocol(size)}"
                self.close(MalformedFrame(message))
                return
            stop = start + size
            if stop > self._end:
                break
            self._start = stop
            self.frame_received(self._frames[start:stop])
        if not (self._is_paused or self._is_closing):
            self._make_room(_LENGTH.size + size)

    def _make_room(self, frame_bytes: int) -> None:
        """Make the buffer fit for the rest of a frame of `frame_bytes`, length included.

        Views of delivered frames lose their bytes here, and only here.
        """
        received, capacity = self._end - self._start, len(self._buffer)
        if received == 0 and capacity > KEEP_BYTES:
            self._replace_buffer(BUFFER_BYTES)
        elif self._end == capacity and received == capacity:
            self._replace_buffer(min(2 * capacity, max(frame_bytes, capacity + BUFFER_BYTES)))
        elif self._start and (received == 0 or self._start + frame_bytes > capacity):
            self._buffer[:received] = self._buffer[self._start : self._end]
            self._start, self._end = 0, received

    def _replace_buffer(self, capacity: int) -> None:
        received = self._end - self._start
        buffer = memoryview(bytearray(capacity))
        buffer[:received] = self._buffer[self._start : self._end]
        self._buffer, self._frames = buffer, buffer.toreadonly()
        self._start, self._end = 0, received


def _other_protocol(size: int) -> str:
    """Say so if an impossible length is how a message of another protocol begins."""
    start = _LENGTH.pack(size)
    if start == b"HTTP" or start.split(b" ")[0] in {b"GET", b"POST", b"PUT", b"HEAD"}:
        return ": the peer speaks HTTP, not Kafka's protocol"
    if start[0] in {0x15, 0x16} and start[1] == 0x03:  # an alert, a hello
        return ": the peer speaks TLS, this side plain Kafka"
    return ""

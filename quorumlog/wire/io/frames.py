"""Frames on a socket, for brokers and clients: four bytes of length, then as many bytes.

All connections of a thread read into one buffer, and a frame is a view into it, without a copy. A
connection has bytes of its own only for the frames that it has not delivered yet: the beginning of
one, or all while it is paused. A length that is negative or over the limit closes the connection.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from struct import Struct as Packer
from typing import Final, cast

from quorumlog.wire.codec.errors import MalformedFrame, OtherProtocol
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.message import Buffer, Received, Sendable, contents
from quorumlog.wire.io.file_sender import Done, FileSender, duplicate

FRAME_MAX_BYTES: Final = 100 * 1024 * 1024  # Kafka's socket.request.max.bytes
SHARED_BYTES: Final = 1024 * 1024
PREPENDED_MAX: Final = 64 * 1024
"""So many bytes of a frame are copied before the rest of it; more grow in a buffer of their own."""
FIRST_SHARED_BYTES: Final = 2 * PREPENDED_MAX
"""Of the shared buffer until a read fills it: an idle process needs no more."""
WRITELINES_NEVER_PAUSES: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (
    3,
    13,
) <= sys.version_info < (3, 13, 2)
"""CVE-2024-12254: in these versions only asyncio's `write` checks the size of unsent bytes."""
_LENGTH: Final = Packer(">i")
_HTTP: Final = frozenset(
    {b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI "}
)
"""The first bytes of a response and of each method; the last: of HTTP/2."""


def _new_buffer(size: int) -> Received:
    buffer = bytearray(size)
    return buffer, memoryview(buffer).toreadonly()


class _Shared:
    """The buffer that the connections of a thread read into, one after the other.

    An event loop gets it, fills it and has it consumed in one go, without a call of another
    connection in between: uvloop, asyncio (its proactor reads elsewhere, and copies), TLS on both.
    """

    __slots__ = ("free", "received")

    def __init__(self) -> None:
        self.replace(FIRST_SHARED_BYTES)

    def replace(self, size: int) -> None:
        """Leave the buffer to its last connection."""
        self.received = _new_buffer(size)
        self.free = memoryview(self.received[0])


class _OfThread(threading.local):
    """The shared buffer of each thread."""

    def __init__(self) -> None:
        self.shared = _Shared()


_of_thread: Final = _OfThread()
_NOTHING: Final = _new_buffer(0)


class FrameProtocol(asyncio.BufferedProtocol):
    """One connection. Subclass it and override the hooks.

    Invariants:
      1. However the bytes arrive, the same frames are delivered in the same order.
      2. The view passed to `frame_received` keeps its bytes until that call returns or, if it
         calls `pause_frames` and `keep_frame`, until `resume_frames` is called.
      3. Between calls, a connection holds no bytes of delivered frames. Its own buffer, if any, is
         at most twice as large as its undelivered bytes, whatever a frame's length field contains.
      4. No frame is delivered after `connection_closed`, or after `close` or `abort`.
    """

    transport: asyncio.Transport
    """The socket's transport, once the connection is open."""

    def __init__(self, *, frame_max_bytes: int = FRAME_MAX_BYTES) -> None:
        self._frame_max_bytes = frame_max_bytes
        self._shared: Final = _of_thread.shared
        self._received = _NOTHING  # the shared buffer or its own
        self._start = self._end = 0  # received bytes, not yet delivered
        self._frame_bytes = 0  # the size of the frame that is not yet whole, with its length
        self._reads_shared = self._is_delivering_read = self._is_frame_kept = False
        self._is_paused = self._is_reading_paused = False
        self._is_closing = False
        self._failure: Exception | None = None
        self._drained: asyncio.Future[None] | None = None  # set while writing is paused
        self._files: FileSender | None = None  # from the first range of a file on

    # Hooks.

    def connection_opened(self) -> None:
        """Handle the start of the connection: it can be written to."""

    def frame_received(self, frame: memoryview) -> None:
        """Handle one frame, without its length. The read-only view is valid during this call.

        An exception ends the connection: the event loop logs it and closes the socket.
        """
        raise NotImplementedError

    def run_received(self) -> bool:
        """Handle several frames together, from `_start` on, the first of which is whole.

        True: `_start` is behind the frames that are handled. False: handle the first alone.
        """
        return False

    def connection_closed(self, error: Exception | None) -> None:
        """Handle the end of the connection. `error`: its cause; None after an orderly close.

        MalformedFrame if the peer sent a frame of impossible length.
        """

    def writing_paused(self) -> None:
        """Send less: the peer reads too slowly, and unsent bytes stay in memory."""

    def writing_resumed(self) -> None:
        """Send again: nearly all unsent bytes have been sent."""

    def read_elsewhere(self, read: Callable[[], bytes], done: Done) -> None:
        """Call `read` in another thread: it waits for the disk; then `done` with its outcome."""
        raise NotImplementedError

    # For the owner.

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be: written bytes are then dropped."""
        return self._is_closing

    @property
    def is_writable(self) -> bool:
        """Whether written bytes will be sent soon; if not, use `drain`."""
        return self._drained is None and not self._is_closing

    @property
    def unsent_bytes(self) -> int:
        """The number of written bytes that the socket has not taken."""
        unsent = 0 if self._files is None else self._files.unsent_bytes
        return unsent + self.transport.get_write_buffer_size()

    def write(self, chunks: Sequence[Sendable]) -> None:
        """Send consecutive chunks. Never blocks; see `is_writable`.

        They must not change from now on: some may be sent later.
        """
        if self._is_closing:
            return
        if self._files is not None and self._sends_files:
            self._write_behind_files(chunks)
        elif FileRange not in map(type, chunks):
            self._write_buffers(chunks)  # type: ignore[arg-type]
        elif self._opens_files():
            self._write_behind_files(chunks)
        else:  # they were in memory a moment ago
            self._write_buffers(contents(chunks))

    @property
    def _sends_files(self) -> bool:
        return self._files is not None and not self._files.is_idle

    def _opens_files(self) -> bool:
        """Whether the connection can send ranges of files."""
        if self._files is None and (socket := duplicate(self.transport)) is not None:
            self._files = FileSender(
                socket, self.read_elsewhere, sent=self._files_sent, failed=self.abort
            )
        return self._files is not None

    def _write_behind_files(self, chunks: Sequence[Sendable]) -> None:
        """Send chunks with ranges of files, or behind such chunks, once the transport is empty."""
        files = cast(FileSender, self._files)
        files.add(chunks)
        if self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits(0)  # resume_writing then means: it is empty
        else:
            files.resume()
        if not files.is_idle:
            self._note_paused()

    def _files_sent(self) -> None:
        """Continue with the transport: no range waits, and no chunk behind one."""
        if self._is_closing:
            self.transport.close()
        else:
            self._note_resumed()

    def _write_buffers(self, buffers: Sequence[Buffer]) -> None:
        if WRITELINES_NEVER_PAUSES:
            *buffers, last = buffers
            if buffers:
                self.transport.writelines(buffers)
            self.transport.write(last)
        else:
            self.transport.writelines(buffers)

    async def drain(self) -> None:
        """Wait until most of the written bytes are sent, or the connection is closed."""
        while self._drained is not None:
            await asyncio.shield(self._drained)

    def pause_frames(self) -> None:
        """Deliver no frame until `resume_frames`, and read no more from the socket."""
        self._is_paused = True
        if not (self._is_reading_paused or self._is_closing):
            self._is_reading_paused = True
            self.transport.pause_reading()

    def hold_frames(self) -> None:
        """Deliver no frame until `resume_frames`. The next read from the socket is the last.

        To stop and start the reads of a socket takes two system calls: too many for a peer that
        waits for a response before it sends the next request.
        """
        self._is_paused = True

    def keep_frame(self) -> None:
        """Keep the bytes of the current frame until `resume_frames`; call `pause_frames`, too."""
        self._is_frame_kept = True

    def release_frame(self) -> None:
        """Keep the bytes of the current frame no longer, while frames stay paused."""
        if self._is_frame_kept:
            self._is_frame_kept = False
            if not self._is_delivering_read:
                self._keep_undelivered()

    def resume_frames(self) -> None:
        """Resume, first with received bytes: frames may be delivered during this call."""
        if not self._is_paused:
            return
        self._is_paused = self._is_frame_kept = False
        if self._received is not _NOTHING:
            self._deliver()
            if not self._is_delivering_read:
                self._keep_undelivered()
        if self._is_reading_paused and not (self._is_paused or self._is_closing):
            self._is_reading_paused = False
            self.transport.resume_reading()

    def close(self, error: Exception | None = None) -> None:
        """Close once all written bytes are sent. `error` is passed to `connection_closed`."""
        if not self._is_closing:
            self._is_closing, self._failure = True, error
            if self._sends_files and not self.transport.is_closing():
                self.transport.pause_reading()  # `_files_sent` closes it
            else:
                self.transport.close()

    def abort(self, error: Exception | None = None) -> None:
        """Close at once and drop unsent bytes."""
        self._is_closing = True
        self._failure = self._failure or error
        self._close_files()
        self.transport.abort()

    # For asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, and open the connection."""
        self.transport = cast(asyncio.Transport, transport)
        self.connection_opened()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return free space, never empty, for the bytes behind the undelivered ones."""
        del sizehint  # a larger buffer costs nothing, and a smaller one a system call
        received = self._end - self._start
        self._reads_shared = received <= PREPENDED_MAX
        if not self._reads_shared:
            if self._end == len(self._received[0]):
                self._replace_buffer(self._size_to_grow())
            return memoryview(self._received[0])[self._end :]
        free = self._shared.free
        if received:  # a copy: perhaps nothing can be read, and the next one reads
            free[:received] = self._received[1][self._start : self._end]
        if self._is_paused:  # the last read: its bytes stay in a buffer of the connection
            return free[received : received + PREPENDED_MAX]
        return free[received:] if received else free

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver the frames that are complete now."""
        if self._reads_shared:
            received = self._end - self._start
            self._received, self._start, self._end = self._shared.received, 0, received
        self._end += nbytes
        if self._reads_shared and self._end == len(self._received[0]) < SHARED_BYTES:
            self._shared.replace(SHARED_BYTES)  # the present one is this connection's own
        self._is_delivering_read = True
        try:
            if self._is_paused:
                self.pause_frames()
            else:
                self._deliver()
        finally:
            self._is_delivering_read = False
            if self._start == self._end and not self._is_frame_kept:
                self._received, self._start, self._end = _NOTHING, 0, 0
            else:
                self._keep_undelivered()

    def eof_received(self) -> bool:
        """Close: this protocol has no use for a half-open connection. True: not at once."""
        self._is_closing = True
        return self._sends_files

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end to the owner, and release the buffer."""
        self._is_closing = True
        self._close_files()
        self._note_resumed()
        self._received, self._start, self._end = _NOTHING, 0, 0
        self.connection_closed(self._failure or exc)

    def pause_writing(self) -> None:
        """Record that the transport's buffer is over its high mark."""
        self._note_paused()

    def resume_writing(self) -> None:
        """Record that the transport's buffer is below its low mark; empty, if ranges wait."""
        if self._files is not None and self._sends_files:
            self.transport.set_write_buffer_limits()
            self._files.resume()
        if not self._sends_files:
            self._files_sent()

    def _note_paused(self) -> None:
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
            self.writing_paused()

    def _note_resumed(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)
            if not self._is_closing:
                self.writing_resumed()

    def _close_files(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.close()

    def _deliver(self) -> None:
        while not (self._is_paused or self._is_closing):
            buffer, view = self._received
            start = self._start + _LENGTH.size
            if start > self._end:
                break
            (size,) = _LENGTH.unpack_from(buffer, self._start)
            if not 0 <= size <= self._frame_max_bytes:
                limit = self._frame_max_bytes
                message = f"a frame of {size} bytes (the limit is {limit})"
                self.close(_other_protocol(size) or MalformedFrame(message))
                return
            stop = start + size
            if stop > self._end:
                self._frame_bytes = stop - self._start
                break
            if not self.run_received():
                self._start = stop
                self.frame_received(view[start:stop])
            if self._start == self._end:
                break

    def _keep_undelivered(self) -> None:
        """Leave the shared buffer to the other connections."""
        received = self._end - self._start
        if self._is_frame_kept and not self._is_closing:
            if self._received is self._shared.received:
                self._shared.replace(len(self._received[0]))
        elif not received or self._is_closing:
            self._received, self._start, self._end = _NOTHING, 0, 0
        elif self._received is self._shared.received or 2 * received < len(self._received[0]):
            grows = received > PREPENDED_MAX and not self._is_paused
            self._replace_buffer(self._size_to_grow() if grows else received)

    def _size_to_grow(self) -> int:
        received = self._end - self._start
        return max(received + 1, min(2 * received, self._frame_bytes))

    def _replace_buffer(self, size: int) -> None:
        """Copy the undelivered bytes to the start of a new buffer."""
        received = self._received[1][self._start : self._end]
        self._received = _new_buffer(size)
        self._received[0][: len(received)] = received
        self._start, self._end = 0, len(received)


def _other_protocol(size: int) -> OtherProtocol | None:
    """Return the error if an impossible length is the beginning of another protocol's message."""
    start = _LENGTH.pack(size)
    if start in _HTTP:
        return OtherProtocol("the peer speaks HTTP, not Kafka's protocol")
    if start[0] in {0x15, 0x16} and start[1] == 0x03:  # an alert, a hello
        return OtherProtocol("the peer speaks TLS, this side plain Kafka")
    return None

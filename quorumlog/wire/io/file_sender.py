"""Sends buffers and ranges of files on a socket, in order, the ranges by `os.sendfile`.

It uses a duplicate of a transport's socket, because uvloop has no `loop.sendfile`, and no loop
watches the descriptor of a transport for others. The transport must have no unsent bytes meanwhile.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.message import Buffer, Sendable

T = TypeVar("T")
Done = Callable[[bytes | Exception], None]
ReadElsewhere = Callable[[Callable[[], bytes], Done], None]
"""Calls a function that may wait for the disk, in another thread; passes on its outcome."""

TURN_BYTES: Final = 1 << 20  # sent of one connection in one turn of the event loop
COLD_BYTES: Final = 128 * 1024  # read by another thread, and held, when pages have been evicted
BUFFERS_PER_CALL: Final = 64
SENDS_FILES: Final = hasattr(os, "sendfile") and hasattr(socket, "MSG_MORE")  # Linux


class FileSender:
    """The unsent bytes of one connection, while ranges of files are among them.

    Invariants:
      1. All bytes leave in the order of `add`, each once.
      2. It waits for at most one event: the socket becomes writable, or a thread has read bytes.
      3. After `close`, it calls nothing, and holds no bytes, range or descriptor.
    """

    def __init__(
        self,
        duplicate: socket.socket,
        read_elsewhere: ReadElsewhere,
        *,
        sent: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`sent`: nothing is left; it is not called within `add`. `failed`: see `os.sendfile`."""
        self._socket: Final = duplicate
        self._loop: Final = asyncio.get_running_loop()
        self._read_elsewhere: Final = read_elsewhere
        self._sent: Final = sent
        self._failed: Final = failed
        self._unsent: Final[deque[Sendable]] = deque()
        self._awaits_socket = self._awaits_read = self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether all bytes are sent."""
        return not self._unsent

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the socket has not taken."""
        return sum(map(len, self._unsent))

    def add(self, chunks: Iterable[Sendable]) -> None:
        """Append chunks to the unsent bytes; `resume` sends them."""
        self._unsent.extend(chunk for chunk in chunks if len(chunk))

    def resume(self) -> None:
        """Send as much as the socket takes, unless an event is awaited; the transport is empty."""
        if not (self._awaits_socket or self._awaits_read or self._is_closed):
            self._send()

    def close(self) -> None:
        """Drop the unsent bytes, and release everything."""
        if not self._is_closed:
            self._is_closed = True
            self._unsent.clear()
            self._await_socket(False)
            self._socket.close()

    def _send(self) -> None:
        """Send up to TURN_BYTES: the other connections have their turn, too."""
        left, is_full = TURN_BYTES, False
        try:
            while self._unsent and left > 0 and not is_full:
                first = self._unsent[0]
                if not isinstance(first, FileRange):
                    left -= self._send_buffers()
                elif first.file.is_cached(size := min(left, first.size), first.position):
                    count = self._send_range(first, size)
                    left, is_full = left - count, count < size
                else:
                    self._await_socket(False)
                    self._read(first)
                    return
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._failed(error)
            return
        self._await_socket(bool(self._unsent))

    def _send_buffers(self) -> int:
        """Send consecutive buffers with one call; return the number of bytes."""
        buffers: list[Buffer] = []
        for chunk in islice(self._unsent, BUFFERS_PER_CALL):
            if isinstance(chunk, FileRange):
                break
            buffers.append(chunk)
        flags = socket.MSG_MORE if len(buffers) < len(self._unsent) else 0  # fills the packet
        count = left = self._socket.sendmsg(buffers, (), flags)
        for buffer in buffers:
            self._unsent.popleft()
            if left < len(buffer):
                self._unsent.appendleft(memoryview(buffer)[left:])
                break
            left -= len(buffer)
        return count

    def _send_range(self, first: FileRange, size: int) -> int:
        count = os.sendfile(self._socket.fileno(), first.file.fileno(), first.position, size)
        if count == 0:
            raise OSError(f"a file ends at byte {first.position} of a lent range")
        self._unsent.popleft()
        if count < first.size:
            self._unsent.appendleft(first.after(count))
        return count

    def _read(self, first: FileRange) -> None:
        """Have a thread read the beginning of a range whose pages were evicted."""
        self._awaits_read = True
        self._read_elsewhere(partial(first.read, COLD_BYTES), partial(self._have_read, first))

    def _have_read(self, first: FileRange, outcome: bytes | Exception) -> None:
        self._awaits_read = False
        if self._is_closed:
            return
        if isinstance(outcome, Exception):
            self._failed(outcome)
            return
        self._unsent.popleft()
        if len(outcome) < first.size:
            self._unsent.appendleft(first.after(len(outcome)))
        self._unsent.appendleft(outcome)
        self._writable()

    def _writable(self) -> None:
        self._send()
        if not (self._unsent or self._is_closed):
            self._sent()

    def _await_socket(self, must_wait: bool) -> None:
        if must_wait != self._awaits_socket:
            self._awaits_socket = must_wait
            if must_wait:
                self._loop.add_writer(self._socket.fileno(), self._writable)
            else:
                self._loop.remove_writer(self._socket.fileno())


def duplicate(transport: asyncio.Transport) -> socket.socket | None:
    """Return a duplicate of a transport's socket, to send files on; None: it sends bytes only.

    TLS would be decided here: its transport encrypts bytes in this process.
    """
    original = transport.get_extra_info("socket")
    if not SENDS_FILES or original is None or transport.get_extra_info("sslcontext") is not None:
        return None
    try:
        descriptor = os.dup(original.fileno())
    except OSError:  # no handle is left
        return None
    return socket.socket(original.family, original.type, original.proto, fileno=descriptor)

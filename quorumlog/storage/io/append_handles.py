"""File handles for appends: a bounded pool, however many logs there are.

A broker may have ten thousand active segments, most of them idle. The least recently used handles
are closed; the next use opens the file again. The price: the kernel reports a failed background
write to the handles that are open then or, without any, to the next handle, but only while it
caches the inode. So bytes whose handle was closed before an fsync are in *doubt*: a later fsync
that succeeds does not cover them until they have been read again. If the kernel has dropped the
inode, it has dropped its pages, too, so that this reads the disk.
docs/decisions/0022-file-handles.md
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from errno import EBADF, EIO
from itertools import islice
from typing import Final, Protocol

from quorumlog.storage.io.read_handles import ReadableFile
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.message import Buffer

OPEN_HANDLES_MAX: Final = 512  # per process; the pool for reads keeps as many idle handles
_SPARED: Final = 16  # when the pool overflows, one in so many handles is closed


class DiskFile(ReadableFile, Protocol):
    """An open file: appended to by one thread, fsynced perhaps by another."""

    def append(self, chunks: Sequence[Buffer]) -> None:
        """Write all chunks at the end. If it raises, any part of them may have been written."""

    def overwrite(self, data: Buffer, position: int) -> None:
        """Write within the file. If it raises, any part may have been written."""

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes. Durable only after `fsync`."""

    def fsync(self) -> None:
        """Make the content and the size durable (not the name: see `Disk.fsync_dir`)."""


class AppendHandles:
    """The open handles of AppendFiles: at most `open_max`, or as many as are in use.

    All methods are thread-safe.
    """

    def __init__(self, open_max: int = OPEN_HANDLES_MAX) -> None:
        self._open_max: Final = open_max
        self._lock: Final = threading.Lock()
        self._open: Final[OrderedDict[AppendFile, DiskFile]] = OrderedDict()  # newest use last

    @property
    def open_count(self) -> int:
        """The number of open handles."""
        return len(self._open)

    def take(self, file: "AppendFile", *, may_open: bool = True) -> DiskFile | None:
        """Return the handle of `file` for use until `give_back`, opening it if `may_open`.

        None if it is not open, and not `may_open`. Raises OSError.
        """
        with self._lock:
            handle = self._open.get(file)
            if handle is not None:  # nearly always
                self._open.move_to_end(file)
                file.users += 1
                return handle
        if not may_open:
            return None
        opened = file.open_again()  # without the lock: it may wait for the disk
        try:
            with self._lock:
                handle = self._open.get(file)  # another thread may have opened it meanwhile
                if handle is None:
                    file.require_same_size(opened)
                    handle = self._open[file] = opened
                file.users += 1
        except BaseException:
            opened.close()
            raise
        if handle is not opened:
            opened.close()
        return handle

    def add(self, file: "AppendFile", handle: DiskFile) -> None:
        """Add the handle of a new file, not yet shared; it is in use until `give_back`."""
        with self._lock:
            self._open[file], file.users = handle, 1

    def give_back(self, file: "AppendFile") -> None:
        """End a use, and close surplus handles."""
        with self._lock:
            file.users -= 1
            if file.is_closed and not file.users:
                self._close(file)
            if len(self._open) > self._open_max:  # several at once: cheaper than one by one
                self._close_surplus(self._open_max - self._open_max // _SPARED)

    def close_oldest(self) -> bool:
        """Close the least recently used handle; return False if all are in use, or none is open."""
        with self._lock:
            return self._close_surplus(len(self._open) - 1)

    def close_file(self, file: "AppendFile") -> None:
        """Close the handle of a file for good; a handle in use, when it is given back."""
        with self._lock:
            file.is_closed = True
            if not file.users:
                self._close(file)

    def _close_surplus(self, wanted: int) -> bool:
        idle = (file for file in self._open if not file.users)
        surplus = list(islice(idle, len(self._open) - wanted))
        for file in surplus:
            file.let_go(self._open[file])
            self._close(file)
        return bool(surplus)

    def _close(self, file: "AppendFile") -> None:
        handle = self._open.pop(file, None)
        if handle is not None:
            handle.close()


class AppendFile:
    """A DiskFile that has a system handle only while it is used, or was used recently.

    The file must keep its name until `close`. Invariant: a reopened file has the size that it had
    when its handle was closed, or every use of it is refused.
    """

    __slots__ = (
        "_changes",
        "_doubted",
        "_handles",
        "_open",
        "_settled",
        "_size",
        "_synced",
        "is_closed",
        "users",
    )

    def __init__(
        self, handles: AppendHandles, open_file: Callable[[], DiskFile], *, new: DiskFile | None
    ) -> None:
        """Open the file with its first use; `new` is the handle of a file just created."""
        self.is_closed, self.users = False, 0  # and threads that use it: the pool's, by its lock
        self._handles: Final = handles
        self._open: Final = open_file
        # Counts of changes: all, fsynced, in doubt (handle closed before their fsync), and read
        # again since. An existing file counts one change: its content may not be durable.
        self._changes = 1 if new is None else 0
        self._synced = self._doubted = self._settled = 0
        self._size: int | None = None  # when its handle was closed
        if new is not None:
            handles.add(self, new)
            handles.give_back(self)

    def append(self, chunks: Sequence[Buffer]) -> None:  # noqa: D102 - see DiskFile
        self._changes += 1  # first: a failed write may have changed the file
        handles = self._handles
        handle = handles.take(self)
        if handle is None:
            raise OSError(EBADF, os.strerror(EBADF))
        try:
            handle.append(chunks)
        finally:
            handles.give_back(self)

    def pread(self, size: int, position: int) -> bytes:  # noqa: D102 - see ReadableFile
        handle = self._taken()
        try:
            return handle.pread(size, position)
        finally:
            self._handles.give_back(self)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        """Read from the page cache: see ReadableFile. None without an open handle."""
        handle = self._handles.take(self, may_open=False)
        if handle is None:
            return None
        try:
            return handle.pread_cached(size, position)
        finally:
            self._handles.give_back(self)

    def lend(self, size: int, position: int) -> FileRange | None:
        """Lend bytes of the page cache: see ReadableFile. None without an open handle."""
        handle = self._handles.take(self, may_open=False)
        if handle is None:
            return None
        try:
            return handle.lend(size, position)
        finally:
            self._handles.give_back(self)

    def truncate(self, size: int) -> None:  # noqa: D102 - see DiskFile
        self._changes += 1
        handle = self._taken()
        try:
            handle.truncate(size)
        finally:
            self._handles.give_back(self)

    def fsync(self) -> None:
        """Make the content durable, except bytes in doubt: see `is_in_doubt`."""
        changes = self._changes
        handle = self._taken()
        try:
            handle.fsync()
        finally:
            self._handles.give_back(self)
        self._synced = changes

    def size(self) -> int:  # noqa: D102 - see ReadableFile
        handle = self._taken()
        try:
            return handle.size()
        finally:
            self._handles.give_back(self)

    def close(self) -> None:  # noqa: D102 - see ReadableFile
        self._handles.close_file(self)

    # --- doubt ---

    @property
    def changes(self) -> int:
        """The number of changes so far; the file contains at most these."""
        return self._changes

    @property
    def is_in_doubt(self) -> bool:
        """Whether a successful fsync may have missed a lost write."""
        return self._doubted > self._settled

    def settle(self, changes: int) -> None:
        """Record that the first `changes` changes were fsynced, and then read again."""
        self._settled = max(self._settled, changes)

    def let_go(self, handle: DiskFile) -> None:
        """Prepare for the close of a handle that is not in use; the pool calls it."""
        try:
            self._size = handle.size()
        except OSError:
            self._size = -1  # unknown: every use is refused
        if self._synced < self._changes:
            self._doubted = self._changes

    def open_again(self) -> DiskFile:
        """Open the file; the pool calls it. Raises OSError."""
        if self.is_closed:
            raise OSError(EBADF, os.strerror(EBADF))
        return self._open()

    def require_same_size(self, handle: DiskFile) -> None:
        """Refuse a file whose size has changed since its handle was closed. Raises OSError."""
        if self._size is not None and handle.size() != self._size:
            raise OSError(EIO, "the file has another size than when it was closed")

    def _taken(self) -> DiskFile:
        handle = self._handles.take(self)
        if handle is None:
            raise OSError(EBADF, os.strerror(EBADF))
        return handle

"""File handles for reads: a bounded pool, however many files there are.

A log of a terabyte has a thousand full segments, and a broker has many logs. A reader takes a
handle out of the pool for one read, so that no other thread can close it meanwhile.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from quorumlog.wire.codec.file_range import FileRange

IDLE_HANDLES_MAX: Final = 512  # per process; systems allow 1024 handles or more
KNOWS_WHAT_IS_CACHED: Final = hasattr(os, "RWF_NOWAIT")  # Linux


class ReadableFile(Protocol):
    """An open file that is read."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes from `position`: fewer only at the end of the file."""

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        """Read as `pread` does; None if that might wait for the disk."""

    def lend(self, size: int, position: int) -> FileRange | None:
        """Return bytes to send without a copy, if all are in memory; None: read them.

        They must never change: see `FileRange`.
        """

    def size(self) -> int:
        """Bytes in the file now."""

    def close(self) -> None:
        """Close the file; again: no effect."""


class ReadHandles:
    """The idle handles: at most `idle_max`, one for each file.

    All methods are thread-safe. A file that several threads read at once has a handle for each.
    """

    def __init__(self, idle_max: int = IDLE_HANDLES_MAX) -> None:
        self._idle_max: Final = idle_max
        self._lock: Final = threading.Lock()
        self._idle: Final[OrderedDict[ReadFile, ReadableFile]] = OrderedDict()  # newest use last

    def take(self, file: "ReadFile") -> ReadableFile | None:
        """Return the idle handle of `file`, for the caller alone; None if there is none."""
        with self._lock:
            return self._idle.pop(file, None)

    def give_back(self, file: "ReadFile", handle: ReadableFile) -> None:
        """Keep `handle` for the next read of `file`, and close a surplus handle."""
        with self._lock:
            surplus: ReadableFile | None = handle
            if not file.is_closed and file not in self._idle:
                self._idle[file], surplus = handle, None
                if len(self._idle) > self._idle_max:
                    _, surplus = self._idle.popitem(last=False)
        if surplus is not None:
            surplus.close()

    def close_file(self, file: "ReadFile") -> None:
        """Close the idle handle of `file`; a handle in use, when it is given back."""
        with self._lock:
            file.is_closed = True
            handle = self._idle.pop(file, None)
        if handle is not None:
            handle.close()

    def close_oldest(self) -> bool:
        """Close the least recently used handle; return False if there is none."""
        with self._lock:
            if not self._idle:
                return False
            _, handle = self._idle.popitem(last=False)
        handle.close()
        return True


class ReadFile:
    """A ReadableFile that has a system handle only while it is read, or was read recently.

    The file must keep its name until `close`.
    """

    __slots__ = ("_handles", "_open", "is_closed")

    def __init__(self, handles: ReadHandles, open_file: Callable[[], ReadableFile]) -> None:
        self.is_closed = False  # written by the pool, under its lock
        self._handles: Final = handles
        self._open: Final = open_file

    def pread(self, size: int, position: int) -> bytes:  # noqa: D102 - see ReadableFile
        handle = self._handles.take(self) or self._open()
        try:
            return handle.pread(size, position)
        finally:
            self._handles.give_back(self, handle)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        """Read from the page cache: see ReadableFile."""
        handle = self._handles.take(self) if KNOWS_WHAT_IS_CACHED else None
        if handle is None:
            return None
        try:
            return handle.pread_cached(size, position)
        finally:
            self._handles.give_back(self, handle)

    def lend(self, size: int, position: int) -> FileRange | None:
        """Lend bytes of the page cache: see ReadableFile. None without an idle handle."""
        handle = self._handles.take(self)
        if handle is None:
            return None
        try:
            return handle.lend(size, position)
        finally:
            self._handles.give_back(self, handle)

    def size(self) -> int:  # noqa: D102 - see ReadableFile
        handle = self._handles.take(self) or self._open()
        try:
            return handle.size()
        finally:
            self._handles.give_back(self, handle)

    def close(self) -> None:  # noqa: D102 - see ReadableFile
        self._handles.close_file(self)

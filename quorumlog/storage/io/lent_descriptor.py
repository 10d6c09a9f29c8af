"""Descriptors that are lent to sockets, and the test whether a file's bytes are in memory.

`os.sendfile` waits for pages that are not in the page cache, and the event loop must not wait. The
system call cachestat (Linux 6.5) counts the pages of a range in 1 us; mincore takes as long as a
copy of small ranges. A page counts while it is still being read ahead, so the last byte of a range
is read with RWF_NOWAIT before it is lent. Where either is missing, nothing is lent: reads are
copied.
"""

import ctypes
import os
import sys
from errno import EOPNOTSUPP
from typing import Final

from quorumlog.wire.codec.file_range import FileRange

LEND_FROM_BYTES: Final = 512 * 1024
"""Smaller reads are copied: their copy costs less than the calls around a `sendfile`.

docs/decisions/0059-lent-ranges.md has the figures.
"""
_CACHESTAT: Final = 451  # the number on all machines of Linux but alpha
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "written", "evicted", "recent")
    )


_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


class LentDescriptor:
    """An open file; see `LentFile`. It is closed when nothing refers to it.

    One thread, the log's, lends and checks its bytes.
    """

    __slots__ = ("_counts", "_number", "_range")

    def __init__(self, number: int) -> None:
        self._number: Final = number
        self._range: Final = _Range()  # of the check under way: to make one costs as much
        self._counts: Final = _Counts()

    def __del__(self) -> None:
        os.close(self._number)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._number

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes from `position`: fewer only at the end of the file."""
        return os.pread(self._number, size, position)

    def lend(self, size: int, position: int) -> FileRange | None:
        """Return the range if the file has these bytes in the page cache; else None."""
        if not self.is_cached(size, position):
            return None
        try:
            last = os.preadv(self._number, [bytearray(1)], position + size - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != EOPNOTSUPP:
                raise
            last = 1  # most likely a file system in memory
        return FileRange(self, position, size) if last else None

    def is_cached(self, size: int, position: int) -> bool:
        """Whether all pages of these bytes are in the page cache now."""
        if _libc is None:
            return False
        asked, counts = self._range, self._counts
        asked.offset, asked.size = position, size
        given = ctypes.byref(asked), ctypes.byref(counts)
        if _libc.syscall(_CACHESTAT, self._number, *given, 0) != 0:
            return False  # an older kernel, or not permitted
        first_page, end_page = position // _PAGE_BYTES, -(-(position + size) // _PAGE_BYTES)
        return bool(counts.cached == end_page - first_page)

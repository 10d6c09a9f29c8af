"""Descriptors that are lent to sockets, and the test whether a file's bytes are in memory.

`os.sendfile` waits for pages that are not in the page cache, and the event loop must not wait. The
system call cachestat counts the pages of a range in 1 us; mincore takes as long as a copy of small
ranges. A page counts while it is still being read ahead, so the last byte of a range is read with
RWF_NOWAIT before it is lent. Where either is missing, nothing is lent: reads are copied.
"""

import os
import sys
from collections.abc import Callable
from errno import EOPNOTSUPP
from functools import cache
from typing import Final

from quorumlog.wire.codec.file_range import FileRange

LEND_FROM_BYTES: Final = 512 * 1024
"""Smaller reads are copied: their copy costs less than the calls around a `sendfile`.

docs/decisions/0059-lent-ranges.md has the figures.
"""
_CACHESTAT: Final = 451  # the number on all machines of Linux but alpha
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class LentDescriptor:
    """An open file; see `LentFile`. It is closed when nothing refers to it."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number: Final = number

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
        first_page, end_page = position // _PAGE_BYTES, -(-(position + size) // _PAGE_BYTES)
        return _page_counter()(self._number, size, position) == end_page - first_page


@cache
def _page_counter() -> Callable[[int, int, int], int]:
    """Return the counter of the pages in memory of (descriptor, size, position); -1: unknown."""
    if sys.platform != "linux":
        return lambda _descriptor, _size, _position: -1
    import ctypes  # with the first lent range: a node starts sooner without it

    libc, new_range, new_counts = ctypes.CDLL(None), ctypes.c_uint64 * 2, ctypes.c_uint64 * 5

    def count(descriptor: int, size: int, position: int) -> int:
        counts = new_counts()  # cached, dirty, in writeback, evicted, evicted recently
        given = ctypes.byref(new_range(position, size)), ctypes.byref(counts)
        if libc.syscall(_CACHESTAT, descriptor, *given, 0) != 0:
            return -1  # an older kernel, or not permitted
        return counts[0]

    return count

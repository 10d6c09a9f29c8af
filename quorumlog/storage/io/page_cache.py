"""The number of a file's pages in the page cache, by the system call cachestat (Linux 6.5)."""

import ctypes
import sys
from typing import Final

_CACHESTAT: Final = 451  # the number on all machines of Linux but alpha


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "written", "evicted", "recent")
    )


_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def cached_pages(descriptor: int, size: int, position: int) -> int:
    """Return how many pages of bytes [position, position + size) are in memory; -1: unknown."""
    if _libc is None:
        return -1
    asked, counts = _Range(position, size), _Counts()
    given = ctypes.byref(asked), ctypes.byref(counts)
    if _libc.syscall(_CACHESTAT, descriptor, *given, 0) != 0:
        return -1  # an older kernel, or not permitted
    return int(counts.cached)

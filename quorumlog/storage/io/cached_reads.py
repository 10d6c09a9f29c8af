"""Reads that do not wait for the disk: of what the system has in memory, or NotInMemory.

Another thread then reads what is missing, and so brings it into the page cache.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog.storage.errors import NotInMemory
from quorumlog.storage.io.batch_scan import Pread
from quorumlog.storage.io.read_handles import ReadableFile

CHUNK_BYTES: Final = 1 << 20  # that a thread holds at once


def cached_pread(file: ReadableFile, elsewhere: Pread, ahead: int) -> Pread:
    """Return what reads `file` without waiting; `elsewhere` reads it in another thread.

    `ahead`: how many bytes are wanted behind the headers that are looked at first.
    """

    def pread(size: int, position: int) -> bytes | bytearray:
        data = file.pread_cached(size, position)
        if data is None:
            raise NotInMemory(partial(_bring_in, elsewhere, position, position + size + ahead))
        return data

    return pread


def _bring_in(pread: Pread, start: int, end: int) -> Callable[[], None]:
    while start < end and pread(min(CHUNK_BYTES, end - start), start):
        start += CHUNK_BYTES
    return _nothing


def _nothing() -> None:
    pass

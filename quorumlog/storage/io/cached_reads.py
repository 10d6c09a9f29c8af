"""Reads that never wait for the disk: from the page cache, or NotInMemory.

Another thread then reads the missing bytes, and so brings them into the page cache.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog.storage.errors import NotInMemory
from quorumlog.storage.io.batch_scan import Pread
from quorumlog.storage.io.read_handles import ReadableFile

CHUNK_BYTES: Final = 1 << 20  # held in memory at once by the reading thread


def cached_pread(file: ReadableFile, elsewhere: Pread, ahead: int) -> Pread:
    """Return a `pread` of `file` that never waits; `elsewhere` reads it in another thread.

    `ahead`: number of bytes behind the requested bytes that the other thread also reads.
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

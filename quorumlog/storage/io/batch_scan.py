"""The headers of the batches in a segment's file, read in chunks."""

from collections.abc import Callable, Iterator
from typing import Final

from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import HEADER_BYTES, MAGIC, BatchHeader, read_header

HEADER_SCAN_BYTES: Final = 8 << 10  # two index intervals: most lookups are one read


Pread = Callable[[int, int], bytes | bytearray]
"""Reads (size, position) in a file: see `ReadableFile.pread`."""


class BrokenSegment(StorageError):
    """Where a batch should start, there is none."""


def scan_batches(
    path: str, start: int, end: int, pread: Pread
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches in bytes [start, end). Raises BrokenSegment."""
    while start < end:
        chunk = pread(min(HEADER_SCAN_BYTES, end - start), start)
        position = 0
        while position + HEADER_BYTES <= len(chunk):
            try:
                header = read_header(chunk, position)
            except CorruptBatch as error:
                raise BrokenSegment(f"{path}, byte {start + position}: {error}") from error
            size = header.size_in_bytes
            if header.magic != MAGIC or start + position + size > end:
                raise BrokenSegment(f"{path}: no whole batch at byte {start + position}")
            yield start + position, header
            position += size
        if not position:
            raise BrokenSegment(f"{path}: no whole batch at byte {start}")
        start += position

"""The headers of the batches in a segment's file, read in chunks."""

from collections.abc import Callable, Iterator
from errno import EIO
from typing import Final

from quorumlog.storage.core.log_index import CorruptIndex
from quorumlog.storage.core.segment_index import SegmentIndex
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
    validate_batch,
)

HEADER_SCAN_BYTES: Final = 8 << 10  # two index intervals: most lookups are one read
HEADER_SCAN_BYTES_MAX: Final = 256 << 10  # a long scan of small batches needs few reads
SMALL_BATCHES: Final = 4  # in a chunk: with fewer, most bytes read would be records, not headers
DAMAGED: Final = (
    "%s is damaged, its records cannot be read: %s. If another replica is in sync, stop this node "
    "and delete the directory of the partition"
)
"""The log message of a BrokenSegment: its path, and the error."""

Pread = Callable[[int, int], bytes | bytearray]
"""Reads (size, position) in a file: see `ReadableFile.pread`."""


class BrokenSegment(StorageError):
    """A batch is missing or malformed where one must start."""


def scan_batches(
    path: str, start: int, end: int, pread: Pread
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches in bytes [start, end). Raises BrokenSegment."""
    wanted = HEADER_SCAN_BYTES
    while start < end:
        chunk = pread(min(wanted, end - start), start)
        position = batches = 0
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
            batches += 1
        if not position:
            raise BrokenSegment(f"{path}: no whole batch at byte {start}")
        start += position
        if batches >= SMALL_BATCHES:
            wanted = min(2 * wanted, HEADER_SCAN_BYTES_MAX)


def extend_index(path: str, index: SegmentIndex, end: int, pread: Pread) -> SegmentIndex:
    """Add the headers behind the newest index entry, up to byte `end`; return the index.

    Raises CorruptIndex if that entry contradicts the file, and BrokenSegment.
    """
    newest = index.offsets.last()
    for position, header in scan_batches(path, index.size, end, pread):
        if newest is not None and position == newest.position:
            if header.last_offset != newest.last_offset:
                raise CorruptIndex(f"{newest} is not the batch at its position")
        elif refusal := index.refusal_of(header.base_offset, header.last_offset):
            raise BrokenSegment(f"{path}, byte {position}: {refusal}")
        index.add(header.last_offset, header.size_in_bytes, header.max_timestamp)
    for _, first in scan_batches(path, 0, end, pread):
        index.first_timestamp = first.max_timestamp
        break
    return index


def require_whole(path: str, start: int, end: int, pread: Pread) -> None:
    """Read the batches in bytes [start, end), and check their CRCs. Raises OSError."""
    try:
        for position, header in scan_batches(path, start, end, pread):
            size = header.size_in_bytes
            validate_batch(pread(size, position), 0, header)
    except (BrokenSegment, CorruptBatch) as error:
        raise OSError(EIO, f"written, and lost before it was flushed: {error}", path) from error

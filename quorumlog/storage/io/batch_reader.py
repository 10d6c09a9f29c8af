"""Finds and reads the batches of one segment by its index, within limits."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from quorumlog.storage.core.log_index import CorruptIndex, IndexEntry
from quorumlog.storage.core.segment_index import SegmentIndex
from quorumlog.storage.io.batch_scan import BrokenSegment, Pread, scan_batches
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.records import BatchHeader

Lend = Callable[[int, int], FileRange | None]
"""Lends (size, position) of a file, or refuses: see `ReadableFile.lend`."""
NoteRead = Callable[[int], None]
"""Receives the number of bytes read."""


class ReadLimits(NamedTuple):
    """Limits of one read: see `Log.read`."""

    max_bytes: int
    end_offset: int
    at_least_one: bool = True
    may_wait: bool = True
    lend_below: int = 0


class ReadResult(NamedTuple):
    """Whole batches, and the offset of the next read."""

    records: bytes | bytearray | FileRange
    next_offset: Offset


class BatchReader:
    """Reader of the segment in the file `path`, through `pread`; `lend` may lend its bytes.

    Every method raises CorruptIndex or BrokenSegment if the index contradicts the file.
    """

    __slots__ = ("_index", "_lend", "_path", "_pread")

    def __init__(
        self, path: str, index: SegmentIndex, pread: Pread, lend: Lend | None = None
    ) -> None:
        self._path: Final = path
        self._index: Final = index
        self._pread: Final = pread
        self._lend: Final = lend

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return (position, header) of the batch that holds `offset`, or of the next batch."""
        for position, header in self._scan_from(self._index.entry_for(offset)):
            if header.last_offset >= offset:
                return position, header
        return None

    def read(self, offset: int, limits: ReadLimits) -> ReadResult | None:
        """Read whole batches, from the batch that holds `offset`; None: the segment has none.

        The limits are those of `Log.read`.
        """
        first = self.find(offset)
        if first is None:
            return None
        start, header = first
        is_large = header.size_in_bytes > limits.max_bytes
        if header.next_offset > limits.end_offset or (is_large and not limits.at_least_one):
            return ReadResult(b"", Offset(offset))
        if is_large:
            end, next_offset = start + header.size_in_bytes, header.next_offset
        else:
            end, next_offset = self._end_within(start, start + limits.max_bytes, limits.end_offset)
        lent = None
        if self._lend is not None and next_offset <= limits.lend_below:
            lent = self._lend(end - start, start)
        return ReadResult(lent or self.read_bytes(start, end), Offset(next_offset))

    def read_bytes(self, start: int, end: int) -> bytes | bytearray:
        """Read bytes [start, end) of the file."""
        data = self._pread(end - start, start)
        if len(data) != end - start:
            raise BrokenSegment(f"{self._path} ends at byte {start + len(data)}, not {end}")
        return data

    def scan(self, start: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batch at byte `start` and of all after it."""
        return scan_batches(self._path, start, self._index.size, self._pread)

    def _scan_from(self, entry: IndexEntry | None) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) from an index entry on; CorruptIndex if the entry is wrong."""
        start = entry.position if entry is not None else 0
        for position, header in self.scan(start):
            if entry is not None and position == start and header.last_offset != entry.last_offset:
                raise CorruptIndex(f"{entry} is not the batch at its position")
            yield position, header

    def _end_within(self, start: int, position_max: int, end_offset: int) -> tuple[int, int]:
        """Return the end of the last batch within [start, position_max) and below end_offset.

        The batch at `start` is within both. Returns (position, offset after it).
        """
        index = self._index
        if index.size <= position_max and index.next_offset <= end_offset:
            return index.size, index.next_offset
        by_bytes = index.offsets.starting_by(position_max)
        by_offset = index.entry_for(end_offset - 1)
        entry = min(by_bytes, by_offset) if by_bytes and by_offset else None
        is_before = entry is None or entry.position <= start
        for position, header in self.scan(start) if is_before else self._scan_from(entry):
            if position + header.size_in_bytes > position_max or header.next_offset > end_offset:
                return position, header.base_offset
        return index.size, index.next_offset

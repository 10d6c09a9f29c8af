"""The bookkeeping of one segment: size, end offset, largest timestamp, and the two indexes.

The only writer of index entries, for appends and for rebuilding alike, so that a rebuilt index
equals the one that was lost. Source: Kafka's `LogSegment.append` and `recover`.
"""

from typing import Final

from quorumlog.storage.core.log_index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    CorruptIndex,
    IndexEntry,
    OffsetIndex,
    TimeIndex,
)
from quorumlog.storage.core.settings import INT32_MAX, LogSettings

NO_TIMESTAMP: Final = -1


BatchSpan = tuple[int, int, int]
"""The fields of a batch that the indexes need: its last offset, its size, its largest timestamp."""


class SegmentIndex:
    """The bookkeeping of one segment.

    Invariants:
      1. Batches [base_offset, next_offset) fill bytes [0, size) of the segment.
      2. max_timestamp is their largest timestamp; offset_of_max_timestamp is the last offset of
         the first batch with it.
      3. Every index entry describes one of those batches.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_entries_max",
        "_interval_bytes",
        "base_offset",
        "first_timestamp",
        "max_timestamp",
        "next_offset",
        "offset_of_max_timestamp",
        "offsets",
        "size",
        "times",
    )

    def __init__(self, base_offset: int, settings: LogSettings) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self.offsets = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self._bytes_since_entry = 0
        self._interval_bytes: Final = settings.index_interval_bytes
        self._entries_max: Final = (
            settings.segment_index_bytes // OFFSET_ENTRY_BYTES,
            settings.segment_index_bytes // TIME_ENTRY_BYTES,
        )

    @classmethod
    def resumed(
        cls, base_offset: int, settings: LogSettings, offsets: OffsetIndex, times: TimeIndex
    ) -> "SegmentIndex":
        """Return the state before the batch of the newest entry; the caller adds it again."""
        index = cls(base_offset, settings)
        index.offsets, index.times = offsets, times
        newest = offsets.last()
        if newest is not None:
            index.size = newest.position
        latest = times.last()
        if latest is not None:
            index.max_timestamp, index.offset_of_max_timestamp = latest
        return index

    @classmethod
    def decode(
        cls, base_offset: int, settings: LogSettings, *, offsets: bytes, times: bytes, size: int
    ) -> "SegmentIndex":
        """Read the index files of a segment of `size` bytes; `resumed`. Raises CorruptIndex."""
        offset_index = OffsetIndex.decode(base_offset, offsets)
        time_index = TimeIndex.decode(base_offset, times)
        newest = offset_index.last()
        if newest is not None and newest.position >= size:
            raise CorruptIndex(f"an entry points to {newest.position}, behind byte {size}")
        if newest is not None and not len(time_index):
            raise CorruptIndex("the offset index has entries, but the time index has none")
        return cls.resumed(base_offset, settings, offset_index, time_index)

    def refusal_of(self, base_offset: int, last_offset: int) -> str | None:
        """Return why a batch of these offsets cannot be the next; None if it can, gap or not."""
        if base_offset < self.next_offset:
            return f"base offset {base_offset} where {self.next_offset} is due"
        if last_offset < base_offset:
            return f"last offset delta {last_offset - base_offset}"
        if last_offset - self.base_offset > INT32_MAX:
            return f"offset {last_offset} in the segment of {self.base_offset}"
        return None

    def add(self, last_offset: int, size: int, max_timestamp: int) -> None:
        """Add the batch of `size` bytes that starts at the end of the batch before."""
        if max_timestamp > self.max_timestamp or self.size == 0:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = last_offset
        if self.size == 0:
            self.first_timestamp = max_timestamp
        if self._bytes_since_entry > self._interval_bytes:
            self.offsets.append(last_offset, self.size)
            self.times.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size
        self.size += size
        self.next_offset = last_offset + 1

    def seal(self) -> None:
        """End the time index with the segment's maximum, before the indexes are written."""
        if self.max_timestamp > NO_TIMESTAMP:
            self.times.maybe_append(self.max_timestamp, self.offset_of_max_timestamp)

    def entry_for(self, offset: int) -> IndexEntry | None:
        """Return the newest entry at or before the batch with `offset`; None: read from 0."""
        return self.offsets.ending_by(offset)

    def must_roll_for(
        self,
        *,
        size: int,
        last_offset: int,
        max_timestamp: int,
        settings: LogSettings,
        segment_ms: int,
        entries: int = 1,
    ) -> bool:
        """Whether batches of this total size, which add so many entries, go to a new segment.

        `segment_ms`: the maximum age of this segment.

        Batches larger than segment.bytes get a segment of their own: a follower must store the
        batches that its leader accepted under other settings.
        """
        if not self.size:
            return False
        return (
            self.size + size > settings.segment_bytes
            or len(self.offsets.values) + entries > self._entries_max[0]
            or len(self.times.values) + entries > self._entries_max[1]
            or last_offset - self.base_offset > INT32_MAX
            or (
                self.first_timestamp > NO_TIMESTAMP
                and max_timestamp - self.first_timestamp > segment_ms
            )
        )

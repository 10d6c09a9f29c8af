"""The two sparse indexes of a segment: from offsets and timestamps to positions.

An index may lack entries, but its entries are right. An inconsistent file is refused (CorruptIndex)
and rebuilt from the log. Both are held in memory as columns, 8 and 12 bytes per entry, and written
whole. Byte layouts: docs/log-format.md (Kafka's `OffsetIndex`, `TimeIndex`).
"""

import operator
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
_TIME_ENTRY: Final = struct.Struct(">qI")


class CorruptIndex(ValueError):
    """An index file is not whole, or contradicts its segment: rebuild it."""


class IndexEntry(NamedTuple):
    """A batch: its last offset, and the byte of the segment at which it starts."""

    last_offset: int
    position: int


class TimeEntry(NamedTuple):
    """The largest timestamp so far, in ms, and the last offset of the first batch that has it."""

    timestamp: int
    last_offset: int


def _rising_length(column: "array[int]") -> int:
    """Return the number of leading values that rise strictly."""
    pairs = map(operator.lt, column, islice(column, 1, None))
    if all(pairs):  # nearly always, and four times as fast
        return len(column)
    pairs = map(operator.lt, column, islice(column, 1, None))
    return next(length for length, rises in enumerate(pairs, 1) if not rises)


class OffsetIndex:
    """From offsets to positions, about one entry for each `index.interval.bytes`.

    Invariant: offsets and positions both rise strictly from entry to entry.
    """

    __slots__ = ("_base_offset", "_positions", "_relative_offsets")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._relative_offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._positions)

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry: the batch that ends with `last_offset` starts at `position`."""
        self._relative_offsets.append(last_offset - self._base_offset)
        self._positions.append(position)

    def last(self) -> IndexEntry | None:
        """Return the newest entry."""
        return self._entry(len(self._positions) - 1)

    def ending_by(self, offset: int) -> IndexEntry | None:
        """Return the newest entry whose batch has only offsets <= `offset`."""
        relative_offset = max(-1, offset - self._base_offset)
        return self._entry(bisect_right(self._relative_offsets, relative_offset) - 1)

    def starting_by(self, position: int) -> IndexEntry | None:
        """Return the newest entry whose batch starts at or before `position`."""
        return self._entry(bisect_right(self._positions, position) - 1)

    def truncate_to(self, offset: int) -> None:
        """Forget the batches that hold `offset` or more."""
        keep = bisect_left(self._relative_offsets, max(0, offset - self._base_offset))
        del self._relative_offsets[keep:]
        del self._positions[keep:]

    def encode(self) -> bytes:
        """Return the content of the `.index` file."""
        both = array("I", bytes(OFFSET_ENTRY_BYTES * len(self._positions)))
        both[0::2] = self._relative_offsets
        both[1::2] = self._positions
        if sys.byteorder == "little":
            both.byteswap()
        return both.tobytes()

    @classmethod
    def decode(cls, base_offset: int, content: bytes) -> "OffsetIndex":
        """Read an `.index` file. Raises CorruptIndex."""
        if len(content) % OFFSET_ENTRY_BYTES:
            raise CorruptIndex(f"{len(content)} bytes are no whole number of entries")
        index = cls.decode_rising(base_offset, content)
        if len(index) * OFFSET_ENTRY_BYTES < len(content):
            raise CorruptIndex("the entries do not rise")
        return index

    @classmethod
    def decode_rising(cls, base_offset: int, content: bytes) -> "OffsetIndex":
        """Read the entries up to the first that is torn, or does not rise."""
        both = array("I", content[: len(content) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES])
        if sys.byteorder == "little":
            both.byteswap()
        index = cls(base_offset)
        index._relative_offsets, index._positions = both[0::2], both[1::2]
        whole = min(_rising_length(index._relative_offsets), _rising_length(index._positions))
        del index._relative_offsets[whole:]
        del index._positions[whole:]
        return index

    def entries(self) -> Iterator[IndexEntry]:
        """All of them, oldest first."""
        for relative_offset, position in zip(self._relative_offsets, self._positions, strict=True):
            yield IndexEntry(self._base_offset + relative_offset, position)

    def _entry(self, slot: int) -> IndexEntry | None:
        if slot < 0:
            return None
        return IndexEntry(self._base_offset + self._relative_offsets[slot], self._positions[slot])


class TimeIndex:
    """From timestamps to offsets.

    Invariants: timestamps and offsets rise strictly; a record with a larger timestamp than an
    entry's comes after the entry's offset.
    """

    __slots__ = ("_base_offset", "_relative_offsets", "_timestamps")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._timestamps = array("q")
        self._relative_offsets = array("I")

    def __len__(self) -> int:
        return len(self._timestamps)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` exceeds the newest entry's."""
        if not self._timestamps or timestamp > self._timestamps[-1]:
            self._timestamps.append(timestamp)
            self._relative_offsets.append(offset - self._base_offset)

    def last(self) -> TimeEntry | None:
        """Return the newest entry."""
        return self._entry(len(self._timestamps) - 1)

    def reached_by(self, timestamp: int) -> TimeEntry | None:
        """Return the newest entry <= `timestamp`: records before its batch are all smaller."""
        return self._entry(bisect_right(self._timestamps, timestamp) - 1)

    def truncate_to(self, offset: int) -> None:
        """Forget the batches that hold `offset` or more."""
        keep = bisect_left(self._relative_offsets, max(0, offset - self._base_offset))
        del self._timestamps[keep:]
        del self._relative_offsets[keep:]

    def encode(self) -> bytes:
        """Return the content of the `.timeindex` file."""
        return b"".join(map(_TIME_ENTRY.pack, self._timestamps, self._relative_offsets))

    @classmethod
    def decode(cls, base_offset: int, content: bytes) -> "TimeIndex":
        """Read a `.timeindex` file. Raises CorruptIndex."""
        if len(content) % TIME_ENTRY_BYTES:
            raise CorruptIndex(f"{len(content)} bytes are no whole number of entries")
        index = cls.decode_rising(base_offset, content)
        if len(index) * TIME_ENTRY_BYTES < len(content):
            raise CorruptIndex("the entries do not rise")
        return index

    @classmethod
    def decode_rising(cls, base_offset: int, content: bytes) -> "TimeIndex":
        """Read the entries up to the first that is torn, or does not rise."""
        index = cls(base_offset)
        whole = memoryview(content)[: len(content) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES]
        for timestamp, relative_offset in _TIME_ENTRY.iter_unpack(whole):
            index._timestamps.append(timestamp)
            index._relative_offsets.append(relative_offset)
        rising = min(_rising_length(index._timestamps), _rising_length(index._relative_offsets))
        del index._timestamps[rising:]
        del index._relative_offsets[rising:]
        return index

    def entries(self) -> Iterator[TimeEntry]:
        """All of them, oldest first."""
        for timestamp, relative_offset in zip(
            self._timestamps, self._relative_offsets, strict=True
        ):
            yield TimeEntry(timestamp, self._base_offset + relative_offset)

    def _entry(self, slot: int) -> TimeEntry | None:
        if slot < 0:
            return None
        return TimeEntry(self._timestamps[slot], self._base_offset + self._relative_offsets[slot])

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
from typing import ClassVar, Final, Generic, NamedTuple, Self, TypeVar

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12
_TIME_ENTRY: Final = struct.Struct(">qI")
EntryT = TypeVar("EntryT")


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


class _Index(Generic[EntryT]):
    """Two columns of equal length: offsets behind the base offset, and the values of a subclass."""

    __slots__ = ("_base_offset", "_relative_offsets", "values")
    ENTRY_BYTES: ClassVar[int]
    TYPE: ClassVar[str]  # of the values, as in `array`

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._relative_offsets = array("I")
        self.values: array[int] = array(self.TYPE)

    def __len__(self) -> int:
        return len(self.values)

    def last(self) -> EntryT | None:
        """Return the newest entry."""
        return self._entry(len(self.values) - 1)

    def truncate_to(self, offset: int) -> None:
        """Forget the batches that hold `offset` or more."""
        self._keep(bisect_left(self._relative_offsets, max(0, offset - self._base_offset)))

    @classmethod
    def decode(cls, base_offset: int, content: bytes) -> Self:
        """Read an index file. Raises CorruptIndex."""
        if len(content) % cls.ENTRY_BYTES:
            raise CorruptIndex(f"{len(content)} bytes are no whole number of entries")
        index = cls.decode_rising(base_offset, content)
        if len(index) * cls.ENTRY_BYTES < len(content):
            raise CorruptIndex("the entries do not rise")
        return index

    @classmethod
    def decode_rising(cls, base_offset: int, content: bytes) -> Self:
        """Read the entries up to the first that is torn, or does not rise."""
        index = cls(base_offset)
        index._read(content[: len(content) // cls.ENTRY_BYTES * cls.ENTRY_BYTES])
        index._keep(min(_rising_length(index._relative_offsets), _rising_length(index.values)))
        return index

    def entries(self) -> Iterator[EntryT]:
        """All of them, oldest first."""
        for value, relative_offset in zip(self.values, self._relative_offsets, strict=True):
            yield self._made(value, self._base_offset + relative_offset)

    def _keep(self, length: int) -> None:
        del self._relative_offsets[length:]
        del self.values[length:]

    def _entry(self, slot: int) -> EntryT | None:
        if slot < 0:
            return None
        return self._made(self.values[slot], self._base_offset + self._relative_offsets[slot])

    def _read(self, content: bytes) -> None:
        """Fill the columns from the bytes of whole entries."""
        raise NotImplementedError

    def _made(self, value: int, last_offset: int) -> EntryT:
        raise NotImplementedError


class OffsetIndex(_Index[IndexEntry]):
    """From offsets to positions, about one entry for each `index.interval.bytes`.

    Invariant: offsets and positions both rise strictly from entry to entry.
    """

    __slots__ = ()
    ENTRY_BYTES = OFFSET_ENTRY_BYTES
    TYPE = "I"

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry: the batch that ends with `last_offset` starts at `position`."""
        self._relative_offsets.append(last_offset - self._base_offset)
        self.values.append(position)

    def ending_by(self, offset: int) -> IndexEntry | None:
        """Return the newest entry whose batch has only offsets <= `offset`."""
        relative_offset = max(-1, offset - self._base_offset)
        return self._entry(bisect_right(self._relative_offsets, relative_offset) - 1)

    def starting_by(self, position: int) -> IndexEntry | None:
        """Return the newest entry whose batch starts at or before `position`."""
        return self._entry(bisect_right(self.values, position) - 1)

    def encode(self) -> bytes:
        """Return the content of the `.index` file."""
        both = array("I", bytes(OFFSET_ENTRY_BYTES * len(self.values)))
        both[0::2] = self._relative_offsets
        both[1::2] = self.values
        if sys.byteorder == "little":
            both.byteswap()
        return both.tobytes()

    def _read(self, content: bytes) -> None:
        both = array("I", content)
        if sys.byteorder == "little":
            both.byteswap()
        self._relative_offsets, self.values = both[0::2], both[1::2]

    def _made(self, value: int, last_offset: int) -> IndexEntry:
        return IndexEntry(last_offset, value)


class TimeIndex(_Index[TimeEntry]):
    """From timestamps to offsets.

    Invariants: timestamps and offsets rise strictly; a record with a larger timestamp than an
    entry's comes after the entry's offset.
    """

    __slots__ = ()
    ENTRY_BYTES = TIME_ENTRY_BYTES
    TYPE = "q"

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` exceeds the newest entry's."""
        if not self.values or timestamp > self.values[-1]:
            self.values.append(timestamp)
            self._relative_offsets.append(offset - self._base_offset)

    def reached_by(self, timestamp: int) -> TimeEntry | None:
        """Return the newest entry <= `timestamp`: records before its batch are all smaller."""
        return self._entry(bisect_right(self.values, timestamp) - 1)

    def encode(self) -> bytes:
        """Return the content of the `.timeindex` file."""
        return b"".join(map(_TIME_ENTRY.pack, self.values, self._relative_offsets))

    def _read(self, content: bytes) -> None:
        for timestamp, relative_offset in _TIME_ENTRY.iter_unpack(content):
            self.values.append(timestamp)
            self._relative_offsets.append(relative_offset)

    def _made(self, value: int, last_offset: int) -> TimeEntry:
        return TimeEntry(value, last_offset)

"""The newest batches of a leader, in memory, for followers and tailing consumers.

A read here saves the look-up in the segment's index and file. The tail holds only batches that are
in the log, so both reads return the same records.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from quorumlog.wire.codec.file_range import FileRange

TAIL_BYTES_MAX: Final = 1 << 20
_new_tuple: Final = tuple.__new__  # the class of a NamedTuple costs three times as much


class _Batch(NamedTuple):
    base_offset: int
    next_offset: int
    content: bytes | bytearray


class TailRead(NamedTuple):
    """Whole batches in [offset of the read, next_offset), `size` bytes in all."""

    chunks: Sequence[bytes | bytearray | FileRange]
    size: int
    next_offset: int


class Tail:
    """Consecutive batches up to the log's end, at most TAIL_BYTES_MAX (but for one large batch)."""

    __slots__ = ("_batches", "_size")

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()
        self._size = 0

    def append(self, base_offset: int, next_offset: int, content: bytes | bytearray) -> None:
        """Add the batch that now ends the log."""
        batches = self._batches
        if batches and batches[-1].next_offset != base_offset:
            self.clear()
        batches.append(_Batch(base_offset, next_offset, content))
        self._size += len(content)
        while self._size > TAIL_BYTES_MAX and len(batches) > 1:
            self._size -= len(batches.popleft().content)

    def forget_below(self, offset: int) -> None:
        """Drop the batches that end at or below `offset`: the waiting followers have them."""
        batches = self._batches
        while batches and batches[0].next_offset <= offset:
            self._size -= len(batches.popleft().content)

    def clear(self) -> None:
        """Drop all: this replica no longer leads, or the log was cut."""
        self._batches.clear()
        self._size = 0

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, at_least_one: bool
    ) -> TailRead | None:
        """Read whole batches from the batch that starts at `offset`; None if it is not held.

        All end at or below `end_offset` and take at most max_bytes; with at_least_one, the first
        batch may be larger.
        """
        batches = self._batches
        if not batches or offset < batches[0].base_offset:
            return None
        base_offset, next_offset, content = batches[-1]
        if offset == base_offset and next_offset <= end_offset:  # as most
            size = len(content)
            if at_least_one or size <= max_bytes:
                return _new_tuple(TailRead, ([content], size, next_offset))
        index = len(batches) - 1
        while batches[index].base_offset > offset:
            index -= 1
        if batches[index].base_offset != offset:
            return None
        chunks: list[bytes | bytearray] = []
        size = 0
        for at in range(index, len(batches)):
            _, next_offset, content = batches[at]
            is_too_much = size + len(content) > max_bytes and not (at_least_one and not chunks)
            if next_offset > end_offset or is_too_much:
                break
            chunks.append(content)
            size += len(content)
            offset = next_offset
        return TailRead(chunks, size, offset)

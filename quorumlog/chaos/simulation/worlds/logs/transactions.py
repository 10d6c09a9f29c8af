"""A model of the transactions in one log: which of them are open, committed or aborted.

Its input is the batches that the owner of the log has appended, and the cuts of the log.
"""

from collections.abc import Collection
from typing import Final, NamedTuple


class TransactionBatch(NamedTuple):
    """Records of a transaction; or its marker, which commits it or aborts it."""

    producer_id: int
    base_offset: int
    next_offset: int
    commits: bool | None = None  # None: no marker


class TransactionModel:
    """Of one log.

    `valueless`: offsets of markers, and of records of open and aborted transactions. They are the
    value of no key.
    """

    def __init__(self) -> None:
        self.valueless: Final[set[int]] = set()
        self._batches: Final[list[TransactionBatch]] = []
        self._open: Final[dict[int, list[int]]] = {}  # by producer: the offsets of its records
        self._firsts: Final[dict[int, int]] = {}  # by the marker's offset: the first offset

    @property
    def markers(self) -> Collection[int]:
        """The offsets of the markers."""
        return self._firsts.keys()

    def is_open(self, producer_id: int) -> bool:
        """Whether the producer's transaction has no marker."""
        return producer_id in self._open

    def note(self, batch: TransactionBatch) -> None:
        """Note the batch that follows in the log."""
        self._batches.append(batch)
        offsets = range(batch.base_offset, batch.next_offset)
        self.valueless.update(offsets)
        if batch.commits is None:
            self._open.setdefault(batch.producer_id, []).extend(offsets)
            return
        ended = self._open.pop(batch.producer_id)
        self._firsts[batch.base_offset] = ended[0]
        if batch.commits:
            self.valueless.difference_update(ended)

    def cut(self, end_offset: int) -> None:
        """Forget the batches from `end_offset` on."""
        kept = [one for one in self._batches if one.next_offset <= end_offset]
        for known in (self._batches, self._open, self._firsts, self.valueless):
            known.clear()
        for batch in kept:
            self.note(batch)

    def decided_end(self, committed: int) -> int:
        """Return where the first transaction begins without a committed marker, or `committed`."""
        firsts = [offsets[0] for offsets in self._open.values()]
        firsts += [first for marker, first in self._firsts.items() if marker >= committed]
        return min([committed, *firsts])

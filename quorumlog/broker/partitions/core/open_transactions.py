"""Which transactions hold back the readers of `read_committed` in one partition (KIP-98).

The last stable offset is where the first of them begins, or the high watermark. One that has ended
still counts until its marker is committed: a leader that comes next may not have the marker.
Source: Kafka's `ProducerStateManager` (`ongoingTxns`, `unreplicatedTxns`).
"""

from collections import deque
from typing import Any, Final, NamedTuple

from sortedcontainers import SortedDict

# Of partitions without transactions, which are many, and nothing changes it: each of its kind costs
# as much as the rest of what is known of producers.
_NONE: Final[SortedDict[int, Any]] = SortedDict()


class _Ended(NamedTuple):
    first_offset: int
    marker_offset: int


class OpenTransactions:
    """By the offset of their first record, each O(log n).

    Invariants:
      1. A transaction is ongoing, or ended and not committed, or not here.
      2. Those that have ended are kept in the order of their markers.
    """

    __slots__ = ("_ended", "_ended_firsts", "_ongoing", "known_from")

    def __init__(self) -> None:
        self._ongoing: SortedDict[int, int] = _NONE  # first offset -> producer id
        self._ended: Final[deque[_Ended]] = deque()
        self._ended_firsts: SortedDict[int, None] = _NONE
        self.known_from = 0  # of what ended below, it is not known whether the marker is committed

    def __len__(self) -> int:
        """Return how many are ongoing."""
        return len(self._ongoing)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note the first record of a transaction."""
        if self._ongoing is _NONE:
            self._ongoing = SortedDict()
        self._ongoing[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """Note the marker of a transaction; return the last stable offset once that is committed.

        It is where the first ongoing transaction begins, or the offset behind the marker.
        """
        del self._ongoing[first_offset]
        self._ended.append(_Ended(first_offset, marker_offset))
        if self._ended_firsts is _NONE:
            self._ended_firsts = SortedDict()
        self._ended_firsts[first_offset] = None
        return self._ongoing.peekitem(0)[0] if self._ongoing else marker_offset + 1

    def committed_to(self, high_watermark: int) -> None:
        """Let go of those whose markers are below the high watermark."""
        while self._ended and self._ended[0].marker_offset < high_watermark:
            del self._ended_firsts[self._ended.popleft().first_offset]

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the first that counts begins; None: none counts."""
        ongoing, ended = self._ongoing, self._ended_firsts
        if not ended:
            return ongoing.peekitem(0)[0] if ongoing else None
        first: int = ended.peekitem(0)[0]
        return min(first, ongoing.peekitem(0)[0]) if ongoing else first

    def last_stable_offset(self, log_start_offset: int, high_watermark: int) -> int:
        """Return the offset (exclusive) up to which everything is decided and committed."""
        first = self.first_unstable_offset
        if first is None or first >= high_watermark:
            return high_watermark
        return max(first, log_start_offset)

    def decided_end(self, log_start_offset: int, high_watermark: int) -> int:
        """Return the offset (exclusive) up to which a cleaner may drop records.

        A snapshot of the producers does not name transactions that have ended, whether or not
        their markers are committed. A marker that is not may be cut off yet: nothing is decided
        until all of the snapshot is committed.
        """
        if high_watermark < self.known_from:
            return log_start_offset
        return self.last_stable_offset(log_start_offset, high_watermark)

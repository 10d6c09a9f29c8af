"""The transactions that hold back the readers of `read_committed` in one partition (KIP-98).

The last stable offset is where the first of them begins, or the high watermark. An ended
transaction still counts until its marker is committed: the next leader may lack the marker.
Source: Kafka's `ProducerStateManager` (`ongoingTxns`, `unreplicatedTxns`).
"""

from collections import deque
from typing import Any, Final, NamedTuple

from sortedcontainers import SortedDict

# Shared by the many partitions without transactions, and never changed: a SortedDict of its own
# would cost each as much as all its other producer state.
_NONE: Final[SortedDict[int, Any]] = SortedDict()


class _Ended(NamedTuple):
    first_offset: int
    marker_offset: int


class OpenTransactions:
    """The transactions of one partition by the offset of their first record, each O(log n).

    Invariants:
      1. A transaction is ongoing, or ended and not committed, or not here.
      2. Ended transactions are in the order of their markers.
    """

    __slots__ = ("_ended", "_ended_firsts", "_ongoing", "known_from")

    def __init__(self) -> None:
        self._ongoing: SortedDict[int, int] = _NONE  # first offset -> producer id
        self._ended: Final[deque[_Ended]] = deque()
        self._ended_firsts: SortedDict[int, None] = _NONE
        self.known_from = 0  # the snapshot's end: ended transactions below may be uncommitted

    def __len__(self) -> int:
        """Return the number of ongoing transactions."""
        return len(self._ongoing)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add an ongoing transaction by the offset of its first record."""
        if self._ongoing is _NONE:
            self._ongoing = SortedDict()
        self._ongoing[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """Record the marker of a transaction; return the last stable offset once it is committed.

        It is where the first ongoing transaction begins, or the offset behind the marker.
        """
        del self._ongoing[first_offset]
        self._ended.append(_Ended(first_offset, marker_offset))
        if self._ended_firsts is _NONE:
            self._ended_firsts = SortedDict()
        self._ended_firsts[first_offset] = None
        return self._ongoing.peekitem(0)[0] if self._ongoing else marker_offset + 1

    def committed_to(self, high_watermark: int) -> None:
        """Drop the ended transactions whose markers are below the high watermark."""
        while self._ended and self._ended[0].marker_offset < high_watermark:
            del self._ended_firsts[self._ended.popleft().first_offset]

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the earliest ongoing or uncommitted transaction; None without one."""
        ongoing, ended = self._ongoing, self._ended_firsts
        if not ended:
            return ongoing.peekitem(0)[0] if ongoing else None
        first: int = ended.peekitem(0)[0]
        return min(first, ongoing.peekitem(0)[0]) if ongoing else first

    def last_stable_offset(self, log_start_offset: int, high_watermark: int) -> int:
        """Return the offset (exclusive) below which all transactions are decided and committed."""
        first = self.first_unstable_offset
        if first is None or first >= high_watermark:
            return high_watermark
        return max(first, log_start_offset)

    def decided_end(self, log_start_offset: int, high_watermark: int) -> int:
        """Return the offset (exclusive) up to which a cleaner may drop records.

        A producer snapshot leaves out transactions that have ended, whether or not their markers
        are committed. An uncommitted marker may still be truncated: records count as decided only
        once the whole snapshot is committed.
        """
        if high_watermark < self.known_from:
            return log_start_offset
        return self.last_stable_offset(log_start_offset, high_watermark)

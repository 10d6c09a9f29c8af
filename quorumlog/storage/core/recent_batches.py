"""The last batches of each idempotent producer, noted while a log is checked after a crash.

What is known of producers follows from these as from all batches, so that a start need not read the
log a second time.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from quorumlog.wire.codec.records import BatchHeader

BATCHES_MAX: Final = 5  # of one producer: as many as a broker remembers
PRODUCERS_MAX: Final = 10_000  # with more, the log is read a second time


class RecentBatches:
    """Of the batches from `from_offset` to the end of what was checked.

    Of transactions nothing is known here, and so of no producer if there are any: where one begins
    is not among its last batches, and how it ends is in a record.
    """

    def __init__(self, from_offset: int) -> None:
        self.from_offset: Final = from_offset
        self._is_whole = True
        self.has_transactions = False
        self._by_producer: Final[dict[int, deque[BatchHeader]]] = {}

    def take(self, header: BatchHeader) -> None:
        """Note the batch that follows; it has a producer."""
        if header.is_transactional or header.is_control:
            self.has_transactions, self._is_whole = True, False
        recent = self._by_producer.get(header.producer_id)
        if recent is None:
            recent = self._by_producer[header.producer_id] = deque(maxlen=BATCHES_MAX)
            if len(self._by_producer) > PRODUCERS_MAX:
                self._is_whole = False
                self._by_producer.clear()
                return
        recent.append(header)

    def take_all(self, later: "RecentBatches") -> None:
        """Note what is known of the segment that follows."""
        self.has_transactions = self.has_transactions or later.has_transactions
        noted = later.since(later.from_offset)
        if noted is None:
            self._is_whole = False
        for header in noted or ():
            self.take(header)

    def since(self, offset: int) -> list[BatchHeader] | None:
        """Return the last batches from `offset` on, in order; None if not all of them are known."""
        if offset < self.from_offset or not self._is_whole:
            return None
        return [header for header in self._noted() if header.base_offset >= offset]

    def _noted(self) -> Iterable[BatchHeader]:
        noted = [header for recent in self._by_producer.values() for header in recent]
        return sorted(noted, key=lambda header: header.base_offset)

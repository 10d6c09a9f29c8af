"""The last batches of each idempotent producer, collected while a log is checked after a crash.

They yield the same producer state as all batches, so that a start reads the log only once.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from quorumlog.wire.codec.records import BatchHeader

BATCHES_MAX: Final = 5  # of one producer: as many as a broker remembers
PRODUCERS_MAX: Final = 10_000  # with more, the log is read a second time


class RecentBatches:
    """The last batches of each producer among the checked batches from `from_offset` on.

    They suffice only in a log without transactions: the first batch of a transaction may be older
    than the last batches, and its outcome is inside a record. `since` then returns None.
    """

    def __init__(self, from_offset: int) -> None:
        self.from_offset: Final = from_offset
        self._is_whole = True
        self.has_transactions = False
        self._by_producer: Final[dict[int, deque[BatchHeader]]] = {}

    def take(self, header: BatchHeader) -> None:
        """Add the next batch; it has a producer id."""
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
        """Add the batches of the next segment."""
        self.has_transactions = self.has_transactions or later.has_transactions
        noted = later.since(later.from_offset)
        if noted is None:
            self._is_whole = False
        for header in noted or ():
            self.take(header)

    def since(self, offset: int) -> list[BatchHeader] | None:
        """Return the last batches from `offset` on, in order; None if some may be missing."""
        if offset < self.from_offset or not self._is_whole:
            return None
        return [header for header in self._noted() if header.base_offset >= offset]

    def _noted(self) -> Iterable[BatchHeader]:
        noted = [header for recent in self._by_producer.values() for header in recent]
        return sorted(noted, key=lambda header: header.base_offset)

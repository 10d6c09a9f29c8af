"""Transactions during compaction: aborted records go; a marker goes after all its records.

Feed it every batch of the log in order, from the start of the log. Source: Kafka's
`CleanedTransactionMetadata`; KAFKA-8351, 13727, 14055.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.wire.codec.records import BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker


class CleanedTransactions:
    """The transactions that span the current batch.

    `kept_aborted`: aborted transactions of which the log had a batch before this cleaning; readers
    may still need their index entries.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self.kept_aborted: Final[list[AbortedTransaction]] = []
        by_first = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
        self._to_come: Final = by_first  # the next transaction is last
        self._aborted: Final[dict[int, AbortedTransaction]] = {}  # by producer id
        self._has_batch: Final[set[int]] = set()  # producer ids with a batch since their marker

    def is_aborted(self, header: BatchHeader) -> bool:
        """Pass a batch of records; return whether its transaction was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        self._has_batch.add(header.producer_id)
        return header.producer_id in self._aborted

    def is_last_of_its_transaction(
        self, header: BatchHeader, marker: TransactionMarker | None
    ) -> bool:
        """Pass a control batch; return whether no other batch of its transaction is left."""
        self._advance(header.last_offset)
        if marker is None:
            return True
        aborted = self._aborted.pop(header.producer_id, None)
        has_batch = header.producer_id in self._has_batch
        self._has_batch.discard(header.producer_id)
        if has_batch and aborted is not None:
            self.kept_aborted.append(aborted)
        return not has_batch

    def _advance(self, last_offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= last_offset:
            aborted = self._to_come.pop()
            self._aborted[aborted.producer_id] = aborted

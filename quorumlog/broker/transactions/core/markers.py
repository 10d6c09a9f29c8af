"""Markers: after the decision, every partition of the transaction gets a marker, then it completes.

A marker is sent until it is written, for ever: the decision is final. A marker may be sent twice
(a leader that has it answers NONE, KAFKA-19999). After a fail-over, all markers are sent again.
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.broker.transactions.core.effects import SendMarkers
from quorumlog.broker.transactions.core.events import MarkersWritten
from quorumlog.broker.transactions.core.outbox import TransactionOutbox
from quorumlog.broker.transactions.core.partition_additions import PartitionAdditions
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, TopicPartition


class Markers:
    """Sends markers. `coordinator_epoch`: the leader epoch of our `__transaction_state` log."""

    def __init__(self, outbox: TransactionOutbox, adding: PartitionAdditions) -> None:
        self.coordinator_epoch: Epoch = NO_EPOCH
        self._outbox: Final = outbox
        self._adding: Final = adding

    def resume(self, transaction: Transaction, now_ms: int) -> None:
        """Send the markers that are neither written nor under way; if all are written, complete."""
        if transaction.state not in PREPARED or transaction.pending is not None:
            return
        if not transaction.unmarked:
            self._complete(transaction, now_ms)
            return
        to_send = sorted(transaction.unmarked - transaction.being_marked)
        if not to_send:
            return
        transaction.being_marked.update(to_send)
        metadata = transaction.metadata
        markers = SendMarkers(
            transactional_id=transaction.transactional_id,
            prepared_ms=metadata.last_update_ms,
            producer=transaction.producer,
            coordinator_epoch=self.coordinator_epoch,
            commit=transaction.state is TransactionState.PREPARE_COMMIT,
            transaction_version=metadata.client_transaction_version,
            partitions=tuple(to_send),
        )
        self._outbox.send(markers)

    def _complete(self, transaction: Transaction, now_ms: int) -> None:
        """Write the Complete record; if the write is refused, the next tick retries.

        # DEVIATION: Kafka begins the next transaction only once this record is committed.
        # docs/decisions/0035-transaction-additions.md
        """
        completed = transaction.completed(now_ms)
        transaction.begin(completed.state)
        following = Transaction(transaction.transactional_id, completed)
        begun = self._adding.begins_behind(following, now_ms)
        if begun is None:
            self._outbox.write(transaction, completed, lambda _now_ms, _error_code: None)
            return
        metadata, done = begun
        transaction.begin_behind(metadata.state)
        self._outbox.write(transaction, completed, done, metadata)

    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        """Record the written markers; the others are sent again after a backoff.

        An event about an earlier decision is ignored.
        """
        is_about_this = (
            transaction.state in PREPARED
            and event.prepared_ms == transaction.metadata.last_update_ms
        )
        if not is_about_this:
            return
        has_failed = False
        for where, error_code in event.errors.items():
            transaction.being_marked.discard(where)
            if error_code is ErrorCode.NONE:
                transaction.unmarked.discard(where)
            else:
                has_failed = has_failed or where in transaction.unmarked
        if has_failed:
            transaction.back_off(now_ms)

    def handle_deleted(
        self, transaction: Transaction, partitions: Iterable[TopicPartition]
    ) -> None:
        """Drop the markers of deleted partitions."""
        transaction.being_marked.difference_update(partitions)
        transaction.unmarked.difference_update(partitions)

"""The batches of a transactional producer: when they may be sent, and when they fail.

Batches leave while their transaction is open and, before KIP-890, has their partition added. When
the transaction fails or is aborted, waiting batches fail at once, also before a retry. The
responses to sent batches are awaited, since EndTxn must not overtake these batches.
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.client.core.accumulator import Accumulator
from quorumlog.client.core.batch import Batch
from quorumlog.client.core.metadata_cache import Leader, Leaders
from quorumlog.client.core.transactions import Transactions
from quorumlog.wire.codec.identifiers import TopicPartition


class TransactionBatches:
    """Connects a producer's transactions with its accumulator.

    It is the `Leaders` of a drain: a partition that may not be sent to has no leader.
    """

    def __init__(
        self, transactions: Transactions, accumulator: Accumulator, leaders: Leaders
    ) -> None:
        self._transactions: Final = transactions
        self._accumulator: Final = accumulator
        self._leaders: Final = leaders

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader if a batch may be sent to it now."""
        if not self._transactions.may_send(topic_partition):
            return None
        return self._leaders.leader(topic_partition)

    def has_room(self, broker_id: int) -> bool:
        """Return whether one more request may be sent to this broker now."""
        return self._leaders.has_room(broker_id)

    def sweep(self) -> list[Batch]:
        """Set the accumulator's identity; fail batches that may not be sent. Before each drain."""
        self._accumulator.identity = self._transactions.identity
        error = self._transactions.refusal()
        return [] if error is None else self._accumulator.fail_all(error, but_sent=True)

    def handle_done(self, batches: Iterable[Batch]) -> None:
        """Handle finished batches: a failed batch ends the transaction."""
        for batch in batches:
            if batch.error is not None:
                batch.error = self._transactions.handle_failed_batch(
                    batch.error, was_sent=batch.attempts > 0
                )

    @property
    def is_empty(self) -> bool:
        """True if no batch waits or is in flight."""
        return not self._accumulator.waiting_partitions()

"""The batches of a transactional producer: which may leave, and what becomes of the others.

Batches leave while their transaction is open, and its partitions are known where that is needed.
When the transaction fails or is aborted, what waits fails at once, also for a retry; what is sent
has its answer awaited, since EndTxn must not overtake it.
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.client.core.accumulator import Accumulator
from quorumlog.client.core.batch import Batch
from quorumlog.client.core.leaders import Leader, Leaders
from quorumlog.client.core.transactions import Transactions
from quorumlog.wire.codec.identifiers import TopicPartition


class TransactionBatches:
    """Stands between a producer's transactions and its accumulator.

    It is the Leaders of a drain: no leader is known, so to speak, for what may not be sent.
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
        """Tell whether one more request may be sent to this broker now."""
        return self._leaders.has_room(broker_id)

    def sweep(self) -> list[Batch]:
        """Fail what will not be sent, and take the identity for what will; before each drain."""
        self._accumulator.identity = self._transactions.identity
        error = self._transactions.refusal()
        return [] if error is None else self._accumulator.fail_all(error, but_sent=True)

    def handle_done(self, batches: Iterable[Batch]) -> None:
        """Handle batches that are done: one that was not acknowledged ends the transaction."""
        for batch in batches:
            if batch.error is not None:
                batch.error = self._transactions.handle_failed_batch(
                    batch.error, was_sent=batch.attempts > 0
                )

    @property
    def is_empty(self) -> bool:
        """Tell whether no batch waits or is in flight."""
        return not self._accumulator.waiting_partitions()

"""Batches of a producer with a bug: leaders must refuse them. They harm no other producer."""

from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.transactions.cluster import Cluster
from quorumlog.chaos.simulation.worlds.transactions.instances import Transaction
from quorumlog.chaos.simulation.worlds.transactions.messages import Party
from quorumlog.chaos.simulation.worlds.transactions.oracle import TransactionOracle
from quorumlog.chaos.simulation.worlds.transactions.partition_batches import encoded_batch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

OFTEN: Final = 0.3  # of the transactions of a careless producer


class Carelessness:
    """The careless batches of one producer."""

    def __init__(
        self, party: Party, cluster: Cluster, oracle: TransactionOracle, rng: Rng, *, is_on: bool
    ) -> None:
        self._party: Final = party
        self._cluster: Final = cluster
        self._oracle: Final = oracle
        self._rng: Final = rng
        self._is_on: Final = is_on

    def is_due(self) -> bool:
        """Draw whether a transaction has a careless batch."""
        return self._is_on and self._rng.random() < OFTEN

    def produce(
        self,
        transaction: Transaction,
        at: TopicPartition,
        sequence: int,
        *,
        is_added: bool,
        answered: Callable[[ProduceResult | None], None],
    ) -> None:
        """Produce to a partition that was not added, or outside the open transaction."""
        name = f"careless {transaction.tag}" if is_added else f"{transaction.tag}:careless"
        value = name.encode()
        now_ms = self._party.machine.now_ms()
        batch = encoded_batch(
            [value], transaction.producer, sequence, now_ms, is_transactional=not is_added
        )

        def heard(result: ProduceResult | None) -> None:
            if result is not None and result.error_code is ErrorCode.NONE:
                self._oracle.misplaced(transaction, at, result.base_offset, value)
            answered(result)

        leader = self._cluster.leader_of(at, self._rng)
        self._cluster.produce(
            self._party,
            leader,
            at,
            batch,
            heard,
            transactional_id=transaction.instance.transactional_id,
            adds=False,
            may_come_late=False,
        )

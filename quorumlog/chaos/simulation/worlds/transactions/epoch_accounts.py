"""Why the epochs of transactional ids rise, as the oracle counts it: each has a cause of its own.

A transaction uses up one at most: the decision to commit or to abort it does, whether the producer,
the administrator or the coordinator takes it (KIP-890). An InitProducerId that is not refused uses
up one, too. A coordinator that uses more of them up brings each producer
id to its end too early (KAFKA-19367).
"""

from collections import defaultdict
from typing import Final, NamedTuple

from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch


class _Known(NamedTuple):
    """An epoch that an InitProducerId was told, and the place of that request among the causes."""

    producer: ProducerIdAndEpoch
    came: int


class EpochAccounts:
    """By transactional id. Causes are numbered in the order in which they come in."""

    def __init__(self) -> None:
        self._causes: Final[dict[str, set[int]]] = defaultdict(set)
        self._known: Final[dict[str, _Known]] = {}

    def may_cost_one(self, transactional_id: str, number: int) -> None:
        """Note a transaction that begins, or an InitProducerId."""
        self._causes[transactional_id].add(number)

    def costs_none(self, transactional_id: str, number: int) -> None:
        """Note that an InitProducerId was refused."""
        self._causes[transactional_id].discard(number)

    def begin(self, transactional_id: str, producer: ProducerIdAndEpoch, came: int) -> None:
        """Count from here on: an InitProducerId is told this epoch. Earlier causes are used up."""
        known = self._known.get(transactional_id)
        if known is None or producer > known.producer:
            self._known[transactional_id] = _Known(producer, came)
            causes = self._causes[transactional_id]
            causes.difference_update([one for one in causes if one <= came])

    def unexplained(self, transactional_id: str, producer: ProducerIdAndEpoch) -> int:
        """Return how many epochs of a producer id have been used up without a cause."""
        known = self._known.get(transactional_id)
        if known is None or known.producer.producer_id != producer.producer_id:
            return 0
        return producer.epoch - known.producer.epoch - len(self._causes[transactional_id])

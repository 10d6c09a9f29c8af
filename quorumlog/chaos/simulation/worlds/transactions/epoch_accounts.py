"""The causes of epoch bumps of transactional ids, counted by the oracle: one cause for each bump.

A transaction uses up at most one epoch: by the decision to commit or to abort it, whether by the
producer, the administrator or the coordinator (KIP-890). A granted InitProducerId uses up one, too.
A coordinator that uses up more exhausts each producer id too early (KAFKA-19367).
"""

from collections import defaultdict
from typing import Final, NamedTuple

from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch


class _Known(NamedTuple):
    """A producer epoch returned by InitProducerId, and the number of that request."""

    producer: ProducerIdAndEpoch
    came: int


class EpochAccounts:
    """Unused causes by transactional id. Causes are numbered in their order of arrival."""

    def __init__(self) -> None:
        self._causes: Final[dict[str, set[int]]] = defaultdict(set)
        self._known: Final[dict[str, _Known]] = {}

    def may_cost_one(self, transactional_id: str, number: int) -> None:
        """Record the begin of a transaction, or an InitProducerId, as a cause."""
        self._causes[transactional_id].add(number)

    def costs_none(self, transactional_id: str, number: int) -> None:
        """Remove the cause of a refused InitProducerId."""
        self._causes[transactional_id].discard(number)

    def begin(self, transactional_id: str, producer: ProducerIdAndEpoch, came: int) -> None:
        """Count from the epoch that an InitProducerId returned. Earlier causes are used up."""
        known = self._known.get(transactional_id)
        if known is None or producer > known.producer:
            self._known[transactional_id] = _Known(producer, came)
            causes = self._causes[transactional_id]
            causes.difference_update([one for one in causes if one <= came])

    def unexplained(self, transactional_id: str, producer: ProducerIdAndEpoch) -> int:
        """Return the number of epochs of a producer id that were used up without a cause."""
        known = self._known.get(transactional_id)
        if known is None or known.producer.producer_id != producer.producer_id:
            return 0
        return producer.epoch - known.producer.epoch - len(self._causes[transactional_id])

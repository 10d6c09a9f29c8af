"""The life of a transactional id, as a table."""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TransactionState(Enum):
    """The values are Kafka's names in DescribeTransactions and ListTransactions.

    They have the order of their numbers in Kafka's records.
    """

    EMPTY = "Empty"  # a producer id is assigned, and no transaction is open
    ONGOING = "Ongoing"  # partitions belong to the transaction
    PREPARE_COMMIT = "PrepareCommit"  # decided: committed. Markers are under way
    PREPARE_ABORT = "PrepareAbort"  # decided: aborted. Markers are under way
    COMPLETE_COMMIT = "CompleteCommit"  # every partition has its marker
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"  # expired. In no record value: its record is a tombstone
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"  # the coordinator is about to abort. In no record


TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
    TransactionState.ONGOING: frozenset(
        {
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
            TransactionState.PREPARE_EPOCH_FENCE,
        }
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
    TransactionState.COMPLETE_ABORT: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
    TransactionState.DEAD: frozenset(),
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.PREPARE_ABORT}),
}
"""From -> to. Since transaction.version 2 an abort may begin without a transaction (KIP-890)."""

STATUS: Final[Mapping[TransactionState, int]] = {
    state: number for number, state in enumerate(TransactionState)
}
"""The number of each state in Kafka's records."""

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""Decided, and waiting for markers."""

WITHOUT_TRANSACTION: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
"""No transaction is open: the id may expire."""

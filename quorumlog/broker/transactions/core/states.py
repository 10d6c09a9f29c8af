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


S = TransactionState
TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    S.EMPTY: frozenset({S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.DEAD}),
    S.ONGOING: frozenset({S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.PREPARE_EPOCH_FENCE}),
    S.PREPARE_COMMIT: frozenset({S.COMPLETE_COMMIT}),
    S.PREPARE_ABORT: frozenset({S.COMPLETE_ABORT}),
    S.COMPLETE_COMMIT: frozenset({S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.DEAD}),
    S.COMPLETE_ABORT: frozenset({S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.DEAD}),
    S.DEAD: frozenset(),
    S.PREPARE_EPOCH_FENCE: frozenset({S.PREPARE_ABORT}),
}
"""From -> to. Since transaction.version 2 an abort may begin without a transaction (KIP-890)."""

STATUS: Final[Mapping[TransactionState, int]] = {
    state: number for number, state in enumerate(TransactionState)
}
"""The number of each state in Kafka's records."""

# Tuples: a set would call the hash of a state, a function in Python.
PREPARED: Final = (S.PREPARE_COMMIT, S.PREPARE_ABORT)
"""Decided, and waiting for markers."""

WITHOUT_TRANSACTION: Final = (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
"""No transaction is open: the id may expire."""

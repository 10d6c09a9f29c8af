"""The states of a transactional producer, and their legal transitions (KIP-98, KIP-360)."""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TransactionState(Enum):
    """UNINITIALIZED: before `init_transactions`. FATAL_ERROR: no request is sent any more."""

    UNINITIALIZED = "Uninitialized"
    INITIALIZING = "Initializing"
    READY = "Ready"
    IN_TRANSACTION = "InTransaction"
    COMMITTING = "Committing"
    ABORTING = "Aborting"
    ABORTABLE_ERROR = "AbortableError"
    FATAL_ERROR = "FatalError"


TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.UNINITIALIZED: frozenset(
        {TransactionState.INITIALIZING, TransactionState.FATAL_ERROR}
    ),
    TransactionState.INITIALIZING: frozenset(
        {TransactionState.READY, TransactionState.FATAL_ERROR}
    ),
    TransactionState.READY: frozenset(
        {TransactionState.IN_TRANSACTION, TransactionState.FATAL_ERROR}
    ),
    TransactionState.IN_TRANSACTION: frozenset(
        {
            TransactionState.COMMITTING,
            TransactionState.ABORTING,
            TransactionState.ABORTABLE_ERROR,
            TransactionState.FATAL_ERROR,
        }
    ),
    TransactionState.COMMITTING: frozenset(
        {
            TransactionState.INITIALIZING,
            TransactionState.READY,
            TransactionState.ABORTABLE_ERROR,
            TransactionState.FATAL_ERROR,
        }
    ),
    TransactionState.ABORTING: frozenset(
        {TransactionState.INITIALIZING, TransactionState.READY, TransactionState.FATAL_ERROR}
    ),
    TransactionState.ABORTABLE_ERROR: frozenset(
        {TransactionState.ABORTING, TransactionState.FATAL_ERROR}
    ),
    TransactionState.FATAL_ERROR: frozenset(),
}

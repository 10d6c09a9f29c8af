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


_S = TransactionState
_NEXT: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING}),
    _S.INITIALIZING: frozenset({_S.READY}),
    _S.READY: frozenset({_S.IN_TRANSACTION}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR}),
    _S.COMMITTING: frozenset({_S.INITIALIZING, _S.READY, _S.ABORTABLE_ERROR}),
    _S.ABORTING: frozenset({_S.INITIALIZING, _S.READY}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING}),
}
TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    **{state: after | {_S.FATAL_ERROR} for state, after in _NEXT.items()},
    _S.FATAL_ERROR: frozenset(),
}

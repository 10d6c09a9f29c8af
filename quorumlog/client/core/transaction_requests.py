"""A transactional producer's requests to coordinators, their responses, and reactions to errors.

Reactions (KIP-588, KIP-890, KIP-1050): RETRY repeats the request, MOVED first finds the coordinator
again; ABORT ends the transaction; FENCED, UNKNOWN_ID and FAIL end the producer. UNKNOWN_ID: the
coordinator does not have the producer id. It has expired, or another producer has replaced it, so a
new id could fence the owner of the transactional id (KAFKA-18019).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Final, NamedTuple

from quorumlog.client.core.batch import ProducerIdentity
from quorumlog.client.records import GroupMetadata, OffsetAndMetadata
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

ANY_BROKER: Final = -1


class CoordinatorType(IntEnum):
    """FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorKey(NamedTuple):
    """A coordinator's key: a group id, or a transactional id."""

    type: CoordinatorType
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinator:
    """Request a coordinator's broker id from any broker."""

    coordinator: CoordinatorKey


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """Request a producer id and epoch. `identity`: the current one, None at first (KIP-360)."""

    identity: ProducerIdentity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Add partitions that the transaction will write to, at the coordinator."""

    identity: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsets:
    """Add a group whose offsets the transaction will commit, at the coordinator."""

    identity: ProducerIdentity
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Commit offsets with the transaction. `is_implicit`: v5, which adds the group (KIP-890)."""

    identity: ProducerIdentity
    group: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    is_implicit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Commit or abort. `is_implicit`: v5, whose response has the next epoch (KIP-890)."""

    identity: ProducerIdentity
    committed: bool
    is_implicit: bool


TransactionRequest = (
    FindCoordinator | InitProducerId | AddPartitions | AddOffsets | CommitOffsets | EndTransaction
)


_API_NAMES: Final[Mapping[type, str]] = {
    InitProducerId: "InitProducerId",
    AddPartitions: "AddPartitionsToTxn",
    AddOffsets: "AddOffsetsToTxn",
    CommitOffsets: "TxnOffsetCommit",
    EndTransaction: "EndTxn",
}


def name_of(request: TransactionRequest) -> str:
    """Return a request's name for messages: its coordinator, or its API."""
    if isinstance(request, FindCoordinator):
        kind, key = request.coordinator
        return f"the coordinator of {kind.name.lower()} {key}"
    return _API_NAMES[type(request)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dispatch:
    """One attempt at a request, and its broker. Attempts compare by object identity."""

    broker_id: int
    request: TransactionRequest


class Abilities(NamedTuple):
    """The features of a transaction coordinator.

    `recovers`: InitProducerId v3, which keeps the id and raises the epoch (KIP-360).
    `is_implicit`: transaction.version 2 and its APIs (KIP-890).
    """

    recovers: bool = False
    is_implicit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The used fields of a response. `partitions`: an error code for each, if the API has them."""

    error_code: int = ErrorCode.NONE
    message: str = ""
    coordinator_id: int = -1
    abilities: Abilities | None = None
    identity: ProducerIdentity | None = None
    partitions: Mapping[TopicPartition, int] = field(default_factory=dict)


class Reaction(Enum):
    """The reaction to an error, the gravest last."""

    RETRY = auto()
    MOVED = auto()
    ABORT = auto()
    FAIL = auto()
    UNKNOWN_ID = auto()
    FENCED = auto()


_ALWAYS: Final[Mapping[ErrorCode, Reaction]] = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Reaction.MOVED,
    ErrorCode.NOT_COORDINATOR: Reaction.MOVED,
    ErrorCode.INVALID_PRODUCER_EPOCH: Reaction.FENCED,
    ErrorCode.PRODUCER_FENCED: Reaction.FENCED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Reaction.FAIL,
    ErrorCode.SASL_AUTHENTICATION_FAILED: Reaction.FAIL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Reaction.FAIL,
    ErrorCode.UNSUPPORTED_VERSION: Reaction.FAIL,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Reaction.FAIL,
    ErrorCode.INVALID_TXN_STATE: Reaction.FAIL,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: Reaction.UNKNOWN_ID,
}
_MOVED_BY_SILENCE: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION})


def reaction_to(request: TransactionRequest, code: ErrorCode) -> Reaction:
    """Return the reaction to a coordinator's error."""
    found = _ALWAYS.get(code)
    if found is None and code in RETRIABLE:
        found = Reaction.MOVED if code in _MOVED_BY_SILENCE else Reaction.RETRY
    if found is not None:
        return found
    match request:
        case InitProducerId() | EndTransaction(committed=False):
            return Reaction.FAIL  # an abort cannot help
        case EndTransaction():
            return Reaction.ABORT if code == ErrorCode.TRANSACTION_ABORTABLE else Reaction.FAIL
        case FindCoordinator(coordinator=CoordinatorKey(type=CoordinatorType.TRANSACTION)):
            return Reaction.FAIL
        case _:
            return Reaction.ABORT


def reaction_to_batch(code: ErrorCode) -> Reaction:
    """Return the transaction's reaction to a failed batch.

    INVALID_PRODUCER_EPOCH comes from a partition's leader, which may be ahead of or behind the
    coordinator: only the response to the abort shows if the producer is fenced (KIP-588).
    """
    if code == ErrorCode.INVALID_PRODUCER_EPOCH:
        return Reaction.ABORT
    found = _ALWAYS.get(code, Reaction.ABORT)
    return found if found.value > Reaction.ABORT.value else Reaction.ABORT

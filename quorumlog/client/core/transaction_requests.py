"""What a transactional producer asks of coordinators, what they answer, and what an error means.

Errors (KIP-588, KIP-890, KIP-1050): RETRY and MOVED pass; ABORT ends the transaction; FENCED,
UNKNOWN_ID and FAIL end the producer. UNKNOWN_ID: the coordinator does not have the producer id. The
id has expired, or another producer has replaced it since, so a new id could fence the owner of the
transactional id (KAFKA-18019).
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
    """Which coordinator: of a group, or of a transactional id."""

    type: CoordinatorType
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinator:
    """Ask any broker for a coordinator."""

    coordinator: CoordinatorKey


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """Ask for an id and epoch. `identity`: that of before, None at first (KIP-360)."""

    identity: ProducerIdentity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Tell the coordinator that the transaction will write to these partitions."""

    identity: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsets:
    """Tell the coordinator that the transaction will commit offsets of a group."""

    identity: ProducerIdentity
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Commit offsets when the transaction commits. `is_implicit`: as KIP-890 has it, in v5."""

    identity: ProducerIdentity
    group: GroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    is_implicit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Commit or abort. `is_implicit`: the answer has the next epoch (KIP-890, v5)."""

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
    """Return what a request asks for, for people: the coordinator, or the API."""
    if isinstance(request, FindCoordinator):
        kind, key = request.coordinator
        return f"the coordinator of {kind.name.lower()} {key}"
    return _API_NAMES[type(request)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dispatch:
    """One attempt of a request, and the broker that it goes to. Each attempt is its own object."""

    broker_id: int
    request: TransactionRequest


class Abilities(NamedTuple):
    """What a transaction coordinator offers.

    `recovers`: InitProducerId v3, which keeps the id and raises the epoch (KIP-360).
    `is_implicit`: transaction.version 2 and its APIs (KIP-890).
    """

    recovers: bool = False
    is_implicit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What of an answer counts. `partitions`: the error of each, where an API has them."""

    error_code: int = ErrorCode.NONE
    message: str = ""
    coordinator_id: int = -1
    abilities: Abilities | None = None
    identity: ProducerIdentity | None = None
    partitions: Mapping[TopicPartition, int] = field(default_factory=dict)


class Reaction(Enum):
    """What an error asks for, the gravest last."""

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
    """Return what a coordinator's error asks for."""
    found = _ALWAYS.get(code)
    if found is None and code in RETRIABLE:
        found = Reaction.MOVED if code in _MOVED_BY_SILENCE else Reaction.RETRY
    if found is not None:
        return found
    match request:
        case InitProducerId() | EndTransaction(committed=False):
            return Reaction.FAIL  # there is no other way on
        case EndTransaction():
            return Reaction.ABORT if code == ErrorCode.TRANSACTION_ABORTABLE else Reaction.FAIL
        case FindCoordinator(coordinator=CoordinatorKey(type=CoordinatorType.TRANSACTION)):
            return Reaction.FAIL
        case _:
            return Reaction.ABORT


def reaction_to_batch(code: ErrorCode) -> Reaction:
    """Return what it means for the transaction that one of its batches has failed.

    INVALID_PRODUCER_EPOCH comes from a partition's leader, which may be ahead of or behind the
    coordinator: only the answer to the abort tells if the producer is fenced (KIP-588).
    """
    if code == ErrorCode.INVALID_PRODUCER_EPOCH:
        return Reaction.ABORT
    found = _ALWAYS.get(code, Reaction.ABORT)
    return found if found.value > Reaction.ABORT.value else Reaction.ABORT

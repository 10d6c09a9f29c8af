"""The events of a group coordinator: shared events of coordinators, and its own."""

from dataclasses import dataclass

from quorumlog.broker.coordination.core.events import (
    BecameLeader,
    ClockAdvanced,
    RequestReceived,
    Ticked,
    WriteEnded,
)
from quorumlog.broker.groups.core.consumer.events import TargetMade, TopicsChanged, TopicsMatched
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.requests import (
    CommitTransactionalOffsets,
    Request,
    TransactionalRequest,
)
from quorumlog.wire.codec.error_codes import ErrorCode

__all__ = [
    "BecameLeader",
    "ClockAdvanced",
    "Event",
    "RequestReceived",
    "TargetMade",
    "Ticked",
    "TopicsChanged",
    "TopicsDeleted",
    "TopicsMatched",
    "TransactionVerified",
    "WriteEnded",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """Topics were deleted; a new topic of the same name does not inherit their offsets."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionVerified:
    """The transaction coordinator has answered a VerifyTransaction: NONE, or an error."""

    request_id: int
    request: CommitTransactionalOffsets
    error_code: ErrorCode


Event = (
    RequestReceived[Request]
    | RequestReceived[TransactionalRequest]
    | RequestReceived[ConsumerHeartbeat]
    | WriteEnded
    | TopicsDeleted
    | TransactionVerified
    | TopicsChanged
    | TopicsMatched
    | TargetMade
    | BecameLeader
    | Ticked
    | ClockAdvanced
)

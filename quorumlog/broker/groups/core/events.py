"""The events of a group coordinator: those of every coordinator, and deletions of topics."""

from dataclasses import dataclass

from quorumlog.broker.coordination.core.events import (
    BecameLeader,
    RequestReceived,
    Ticked,
    WriteEnded,
)
from quorumlog.broker.groups.core.requests import (
    CommitTransactionalOffsets,
    Request,
    TransactionalRequest,
)
from quorumlog.wire.codec.error_codes import ErrorCode

__all__ = [
    "BecameLeader",
    "Event",
    "RequestReceived",
    "Ticked",
    "TopicsDeleted",
    "TransactionVerified",
    "WriteEnded",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """These topics were deleted; a new topic of the same name has other records."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionVerified:
    """The transaction coordinator has answered a VerifyTransaction: NONE, or why not."""

    request_id: int
    request: CommitTransactionalOffsets
    error_code: ErrorCode


Event = (
    RequestReceived[Request]
    | RequestReceived[TransactionalRequest]
    | WriteEnded
    | TopicsDeleted
    | TransactionVerified
    | BecameLeader
    | Ticked
)

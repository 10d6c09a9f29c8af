"""The effects of a group coordinator: the shared effects of coordinators, and its own."""

from dataclasses import dataclass

from quorumlog.broker.coordination.core.effects import (
    AdvanceLogStart,
    AnswerRequest,
    AppendRecords,
    OwnEffect,
    WriteMarker,
)
from quorumlog.broker.groups.core.consumer.effects import MakeTarget, MatchTopics
from quorumlog.broker.groups.core.consumer.requests import HeartbeatResult
from quorumlog.broker.groups.core.events import TransactionVerified
from quorumlog.broker.groups.core.records import LogRecord
from quorumlog.broker.groups.core.requests import CommitTransactionalOffsets, Result
from quorumlog.wire.codec.error_codes import ErrorCode

__all__ = [
    "AdvanceLogStart",
    "AnswerRequest",
    "AppendRecords",
    "Effect",
    "MakeTarget",
    "MatchTopics",
    "VerifyTransaction",
    "WriteMarker",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTransaction(OwnEffect):
    """Have the transaction coordinator verify our partition, then feed TransactionVerified."""

    request_id: int
    request: CommitTransactionalOffsets

    def verified(self, error_code: ErrorCode) -> TransactionVerified:
        """Return the event of the outcome."""
        return TransactionVerified(
            request_id=self.request_id, request=self.request, error_code=error_code
        )


Effect = (
    AppendRecords[LogRecord]
    | WriteMarker
    | AnswerRequest[Result | HeartbeatResult]
    | AdvanceLogStart
    | VerifyTransaction
    | MakeTarget
    | MatchTopics
)

"""The effects of a group coordinator: those of every coordinator, with its own records."""

from quorumlog.broker.coordination.core.effects import (
    AdvanceLogStart,
    AnswerRequest,
    AppendRecords,
)
from quorumlog.broker.groups.core.consumer.effects import MakeTarget
from quorumlog.broker.groups.core.consumer.requests import HeartbeatResult
from quorumlog.broker.groups.core.records import LogRecord
from quorumlog.broker.groups.core.requests import Result

__all__ = ["AdvanceLogStart", "AnswerRequest", "AppendRecords", "Effect", "MakeTarget"]

Effect = (
    AppendRecords[LogRecord]
    | AnswerRequest[Result | HeartbeatResult]
    | AdvanceLogStart
    | MakeTarget
)

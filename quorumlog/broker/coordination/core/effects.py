"""The effects of coordinators and of the shards that drive them: imperatives, done in order."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quorumlog.wire.codec.identifiers import Offset

RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecords(Generic[RecordT]):
    """Of a coordinator: append as one batch, then feed WriteEnded, in log order."""

    write_id: int
    records: tuple[RecordT, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest(Generic[ResultT]):
    """Answer one request."""

    request_id: int
    result: ResultT


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Let the log start at `offset`: all that is live is committed at or after it."""

    offset: Offset


class OwnEffect:
    """The base of the effects that only one kind of coordinator has; the shard passes them on."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLog:
    """Read committed batches from `offset` on, then feed LogRead."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBatch:
    """Append the encoded batch with acks=all and without a timeout, then feed AppendEnded."""

    append_id: int
    records: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tell the operator. `is_problem`: something went wrong."""

    text: str
    is_problem: bool = False


CoordinatorEffect = AppendRecords[Any] | AnswerRequest[Any] | AdvanceLogStart | OwnEffect
Effect = ReadLog | AppendBatch | AnswerRequest[Any] | AdvanceLogStart | OwnEffect | Report

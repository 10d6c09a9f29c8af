"""The effects that every coordinator may return: imperatives, performed in order."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from quorumlog.wire.codec.identifiers import Offset

RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecords(Generic[RecordT]):
    """Append as one batch with acks=all, then feed WriteCommitted or WriteFailed, in log order."""

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

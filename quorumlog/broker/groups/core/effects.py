"""What a coordinator may order: imperatives, performed in the order given."""

from dataclasses import dataclass

from quorumlog.broker.groups.core.records import LogRecord
from quorumlog.broker.groups.core.requests import Result
from quorumlog.wire.codec.identifiers import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecords:
    """Append as one batch with acks=all, then say WriteCommitted or WriteFailed: in log order."""

    write_id: int
    records: tuple[LogRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Answer one request."""

    request_id: int
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Let the log start at `offset`: all that is live is committed at or after it."""

    offset: Offset


Effect = AppendRecords | AnswerRequest | AdvanceLogStart

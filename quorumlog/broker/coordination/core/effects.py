"""The effects of coordinators and of the shards that drive them: imperatives, done in order."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_PRODUCER_ID, Offset
from quorumlog.wire.codec.transaction_markers import TransactionMarker

RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecords(Generic[RecordT]):
    """Of a coordinator: append the records as one batch, then feed WriteEnded, in log order.

    With a producer id, the batch belongs to that producer's transaction and has no sequence.
    """

    write_id: int
    records: tuple[RecordT, ...]
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarker:
    """Of a coordinator: append the marker of a transaction, then feed WriteEnded, in log order."""

    write_id: int
    marker: TransactionMarker
    transaction_version: int  # decides how the marker's producer epoch is checked


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest(Generic[ResultT]):
    """Complete one request with its result."""

    request_id: int
    result: ResultT


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Let the log start at `offset`: every live record is committed at or after it."""

    offset: Offset


class OwnEffect:
    """The base of the effects of one kind of coordinator; the shard passes them on."""

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
class AppendMarker:
    """Append the marker in effect order among the batches, then feed AppendEnded."""

    append_id: int
    marker: TransactionMarker
    transaction_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Log `text` for the operator, as a warning if `is_problem`."""

    text: str
    is_problem: bool = False


CoordinatorEffect = (
    AppendRecords[Any] | WriteMarker | AnswerRequest[Any] | AdvanceLogStart | OwnEffect
)
Effect = (
    ReadLog | AppendBatch | AppendMarker | AnswerRequest[Any] | AdvanceLogStart | OwnEffect | Report
)

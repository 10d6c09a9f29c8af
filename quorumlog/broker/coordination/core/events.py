"""The events of coordinators and of the shards that drive them: facts, in the past tense."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, Epoch, Offset

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived(Generic[RequestT]):
    """A request came in. Its AnswerRequest carries the same `request_id`, unique in a shard."""

    request_id: int
    request: RequestT


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEnded:
    """To a coordinator: a write is committed; `next_offset` follows its last record.

    With an error, a code for clients: the records are not in the log and never will be.
    """

    write_id: int
    error_code: ErrorCode = ErrorCode.NONE
    next_offset: Offset = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """The clock has reached the step's `now_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAdvanced:
    """`now_ms` has jumped by `by_ms`; all expiries are due for a check, also after a jump by 0.

    Days count for the ages of offsets, transactions and ids, but not for sessions: a coordinator
    moves their deadlines along.
    """

    by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameLeader:
    """We lead the partition in `leader_epoch`, perhaps since an earlier epoch."""

    leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Resigned:
    """We no longer lead the partition, as of `leader_epoch`."""

    leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The broker stops, or an invariant was violated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """The read of a ReadLog has ended."""

    read: LocalRead


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEnded:
    """An append has ended: `base_offset` is the batch's first offset, unless it was refused.

    After some errors the batch may or may not be in the log.
    """

    append_id: int
    error_code: ErrorCode
    base_offset: int


Event = (
    RequestReceived[Any]
    | BecameLeader
    | Resigned
    | Stopped
    | LogRead
    | AppendEnded
    | Ticked
    | ClockAdvanced
)

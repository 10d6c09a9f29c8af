"""The events of coordinators and of the shards that drive them: facts, in the past tense."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, Epoch, Offset

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived(Generic[RequestT]):
    """A request came in. `request_id` is unique here; its AnswerRequest carries it."""

    request_id: int
    request: RequestT


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCommitted:
    """To a coordinator: the high watermark passed this write; the log goes on at `next_offset`."""

    write_id: int
    next_offset: Offset = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed:
    """To a coordinator: the records of this write are not in the log and never will be.

    `error_code` is one that the clients of the coordinator understand.
    """

    write_id: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed: it is `now_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BecameLeader:
    """We lead the partition, since `leader_epoch` at the latest."""

    leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Resigned:
    """We lead the partition no longer, as of `leader_epoch`."""

    leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The broker stops, or must not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """The read of a ReadLog has ended."""

    read: LocalRead


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendEnded:
    """The append of an AppendBatch has ended: `base_offset` is that of the batch, unless refused.

    An error may leave open whether the batch is in the log.
    """

    append_id: int
    error_code: ErrorCode
    base_offset: int


Event = RequestReceived[Any] | BecameLeader | Resigned | Stopped | LogRead | AppendEnded | Ticked

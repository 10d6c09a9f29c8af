"""The events of every coordinator: facts, in the past tense."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, Offset

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived(Generic[RequestT]):
    """A request came in. `request_id` is unique here; its AnswerRequest carries it."""

    request_id: int
    request: RequestT


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCommitted:
    """The high watermark passed the records of this write; the log goes on at `next_offset`."""

    write_id: int
    next_offset: Offset = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed:
    """The records of this write are not in the log and never will be.

    `error_code` is one that the clients of the coordinator understand.
    """

    write_id: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed: it is `now_ms`."""

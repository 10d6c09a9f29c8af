"""What a coordinator may learn: facts, in the past tense."""

from dataclasses import dataclass

from quorumlog.broker.groups.core.requests import Request
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """A request came in. `request_id` is unique here; its AnswerRequest carries it."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCommitted:
    """The high watermark passed the records of this write; the log goes on at `next_offset`."""

    write_id: int
    next_offset: Offset = UNKNOWN_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed:
    """The records of this write are not in the log and never will be.

    `error_code` is one that the members of groups understand.
    """

    write_id: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """These topics were deleted; a topic of the same name may come, with other records."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time went by; `now_ms` says how far."""


Event = RequestReceived | WriteCommitted | WriteFailed | TopicsDeleted | Ticked

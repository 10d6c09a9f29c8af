"""What a group coordinator may learn: what every coordinator may, and which topics are gone."""

from dataclasses import dataclass

from quorumlog.broker.coordination.core.events import (
    RequestReceived,
    Ticked,
    WriteCommitted,
    WriteFailed,
)
from quorumlog.broker.groups.core.requests import Request

__all__ = ["Event", "RequestReceived", "Ticked", "TopicsDeleted", "WriteCommitted", "WriteFailed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDeleted:
    """These topics were deleted; a topic of the same name may come, with other records."""

    topics: tuple[str, ...]


Event = RequestReceived[Request] | WriteCommitted | WriteFailed | TopicsDeleted | Ticked

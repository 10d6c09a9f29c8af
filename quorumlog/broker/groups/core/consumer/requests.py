"""The requests of members of consumer groups, and the responses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.requests import (
    DeleteGroup,
    GroupRequest,
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    LeaveResult,
    Sync,
    SyncResult,
)
from quorumlog.wire.codec.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    """The response to a ConsumerHeartbeat. `assignment` None: as in an earlier response."""

    error_code: ErrorCode
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class TopicRights(NamedTuple):
    """The topics that a member may describe. `version`: another object when its rights change."""

    may_describe: Callable[[str], bool]
    version: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat(GroupRequest[HeartbeatResult]):
    """ConsumerGroupHeartbeat. A field of None (timeout: -1) is as in an earlier heartbeat.

    `member_epoch` 0: the member joins, or joins again; -1: it leaves; -2: a static member leaves
    and will return. `owned`: the partitions that it has. `new_member_id`: the id for a member
    without an id (version 0). `rights` None: the member may describe every topic.
    """

    member_id: str
    member_epoch: int
    new_member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    api_version: int = 1
    rights: TopicRights | None = None

    @property
    def is_full(self) -> bool:
        """True for a full heartbeat; its response then carries the assignment."""
        names_topics = (
            self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        )
        return names_topics and self.rebalance_timeout_ms != -1 and self.owned is not None

    def refuse(self, error_code: ErrorCode, message: str | None = None) -> HeartbeatResult:
        """Return the error, with a message for the client."""
        return HeartbeatResult(error_code=error_code, error_message=message)


ClassicRequest = Join | Sync | Heartbeat | Leave
"""The requests of members of the classic protocol, also in a consumer group."""

ConsumerGroupRequest = ConsumerHeartbeat | DeleteGroup | ClassicRequest
ConsumerGroupResult = HeartbeatResult | JoinResult | SyncResult | LeaveResult | ErrorCode


class RequestRefused(Exception):
    """A refused request, which has changed no state."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code, self.message = error_code, message

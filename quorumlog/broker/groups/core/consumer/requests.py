"""The requests of members of consumer groups, and the answers."""

from dataclasses import dataclass

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
    """`assignment` None: as the member was told before."""

    error_code: ErrorCode
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat(GroupRequest[HeartbeatResult]):
    """ConsumerGroupHeartbeat. None, and -1 of the timeout: as in an earlier heartbeat.

    `member_epoch` 0: the member joins, or joins again; -1: it leaves; -2: a static member leaves
    and will be back. `owned`: what it has. `new_member_id`: its id if it has none (version 0).
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

    @property
    def is_full(self) -> bool:
        """Whether it says all that there is to say: then its answer does, too."""
        names_topics = (
            self.subscribed_topic_names is not None or self.subscribed_topic_regex is not None
        )
        return names_topics and self.rebalance_timeout_ms != -1 and self.owned is not None

    def refuse(self, error_code: ErrorCode, message: str | None = None) -> HeartbeatResult:
        """Refuse, and say why."""
        return HeartbeatResult(error_code=error_code, error_message=message)


ClassicRequest = Join | Sync | Heartbeat | Leave
"""What members of the classic protocol ask, in a consumer group, too."""

ConsumerGroupRequest = ConsumerHeartbeat | DeleteGroup | ClassicRequest
ConsumerGroupResult = HeartbeatResult | JoinResult | SyncResult | LeaveResult | ErrorCode


class RequestRefused(Exception):
    """A request that is not served; nothing has changed."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code, self.message = error_code, message

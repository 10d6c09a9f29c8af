"""The events of a group member, in the past tense, and its effects, which are orders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quorumlog.client.assignor import Members, NamedAssignor
from quorumlog.client.errors import KafkaError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

COORDINATOR_LOST: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors after which a member looks for its coordinator again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """One member in the leader's JoinGroup response; `metadata`: its subscription, encoded."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """The user subscribed to `topics` and to the topics that match `pattern`; none: leave."""

    topics: tuple[str, ...]
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsListed:
    """The cluster has these topics now; only for a classic member with a pattern."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBegan:
    """The user entered `poll`: the records of earlier polls are processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollEnded:
    """The user left `poll`, with records or without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsChanged:
    """The subscribed topics have these partition counts now.

    racks_changed: replicas have moved to other racks since the assignment was computed.
    """

    counts: Mapping[str, int]
    racks_changed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFound:
    """The group's coordinator was found and can be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRefused:
    """FindCoordinator failed with a lasting error: retry later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorLost:
    """The coordinator's connection broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswered:
    """The JoinGroup response arrived. `members` is empty unless this member leads.

    skip_assignment: this member leads, and the group has an assignment already (KIP-814).
    """

    error_code: int
    generation_id: int = -1
    member_id: str = ""
    leader_id: str = ""
    protocol: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsLookedUp:
    """LookUpTopics ended with these partition counts."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentComputed:
    """ComputeAssignment ended: `assignments` are (member id, encoded)."""

    generation_id: int
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentFailed:
    """ComputeAssignment ended without a valid assignment; `error`: for the user's next `poll`."""

    generation_id: int
    error: KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswered:
    """The SyncGroup response arrived; `assignment` is encoded."""

    error_code: int
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescribed:
    """DescribeGroup ended: each member's assignment in the generation, encoded; None: failed."""

    generation_id: int
    assignments: tuple[bytes, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    """The response to a heartbeat of `generation_id` arrived."""

    generation_id: int
    error_code: int


AssignedTopics = Mapping[bytes, tuple[int, ...]]
"""Sorted partitions by topic id; each topic has at least one partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatAnswered:
    """The response to SendConsumerHeartbeat `attempt` arrived; `assignment` None: unchanged."""

    attempt: int
    error_code: int
    error_message: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: AssignedTopics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsNamed:
    """NameTopics ended with these names; topics that do not exist are left out."""

    names: Mapping[bytes, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationDone:
    """A Revoke is done: offsets are committed and the user's listener has returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed."""


Event = (
    Subscribed | TopicsListed | PollBegan | PollEnded | CountsChanged | RevocationDone | Ticked
    | CoordinatorFound | CoordinatorRefused | CoordinatorLost
    | JoinAnswered | TopicsLookedUp | AssignmentComputed | AssignmentFailed | SyncAnswered
    | GroupDescribed | HeartbeatAnswered
    | ConsumerHeartbeatAnswered | TopicsNamed
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinator:
    """Find the coordinator, with retries; then CoordinatorFound or CoordinatorRefused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendJoin:
    """Send JoinGroup; `protocols` are (assignor's name, encoded subscription)."""

    member_id: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpTopics:
    """Look up the partition counts of these topics, as the leader; then TopicsLookedUp."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeAssignment:
    """Run the assignor, as the leader; then AssignmentComputed or AssignmentFailed.

    counts: the partition count of each topic of the members.
    """

    generation_id: int
    assignor: NamedAssignor
    members: Members
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSync:
    """Send SyncGroup; `assignments` are (member id, encoded), empty unless this member leads."""

    member_id: str
    generation_id: int
    protocol: str
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    """Request each member's assignment in this generation; then GroupDescribed."""

    generation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHeartbeat:
    """Send Heartbeat; then HeartbeatAnswered."""

    member_id: str
    generation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendConsumerHeartbeat:
    """Send ConsumerGroupHeartbeat. None: unchanged; `is_full`: a full heartbeat, with all fields.

    `member_epoch` 0: join; below 0: leave, without waiting for the response.
    """

    attempt: int
    member_id: str
    member_epoch: int
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    owned: AssignedTopics | None = None
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NameTopics:
    """Look up the names of topics with these ids; then TopicsNamed."""

    topic_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLeave:
    """Send LeaveGroup, without waiting for the response."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Stop reading `partitions`; then RevocationDone.

    Unless `lost` (other members may read them already), commit first. Then call the listener.
    """

    partitions: tuple[TopicPartition, ...]
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Read `partitions`, of which `added` are new; call the listener.

    topic_ids: of the assigned topics, by name; empty in a classic group, which assigns names.
    """

    partitions: tuple[TopicPartition, ...]
    added: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Raise this error from the user's next `poll`: a retry may not help.

    error: instead of an error with `error_code` and `message`.
    """

    error_code: int
    message: str | None = None
    error: KafkaError | None = None


Effect = (
    FindCoordinator | SendJoin | LookUpTopics | ComputeAssignment | SendSync | DescribeGroup
    | SendHeartbeat | SendConsumerHeartbeat | NameTopics | SendLeave | Revoke | Assign | Fail
)  # fmt: skip

"""The events and the effects of a group member: facts in the past tense, and orders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
"""The errors by which a member looks for its coordinator anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """One member as the coordinator lists it to the leader; `metadata` is its subscription, raw."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """The user wants these topics from now on, or those that match; none: leave the group."""

    topics: tuple[str, ...]
    pattern: str | None = None  # in consumer groups of KIP-848


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBegan:
    """The user is in `poll`: what earlier polls returned is processed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollEnded:
    """The user has left `poll`, with records or without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsChanged:
    """How many partitions the subscribed topics have now."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFound:
    """The group's coordinator is known and can be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRefused:
    """No broker says where it is, and the error stays: ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorLost:
    """Its connection broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswered:
    """JoinGroup's answer. `members` is empty unless we lead.

    skip_assignment: we lead, and the generation has its assignment already (KIP-814).
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
    """The partition counts that LookUpTopics asked for."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswered:
    """SyncGroup's answer; `assignment` is raw."""

    error_code: int
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescribed:
    """What each member is assigned in `generation_id`, raw; None: the question failed."""

    generation_id: int
    assignments: tuple[bytes, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    """Heartbeat's answer, to the one of `generation_id`."""

    generation_id: int
    error_code: int


AssignedTopics = Mapping[bytes, tuple[int, ...]]
"""Partitions by the id of their topic, in order; no topic without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatAnswered:
    """The answer to the SendConsumerHeartbeat of that number; `assignment` None: as before."""

    attempt: int
    error_code: int
    error_message: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: AssignedTopics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsNamed:
    """What NameTopics found; a topic that is not there has no name."""

    names: Mapping[bytes, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationDone:
    """Offsets are committed and the user's listener has returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed."""


Event = (
    Subscribed
    | PollBegan
    | PollEnded
    | CountsChanged
    | CoordinatorFound
    | CoordinatorRefused
    | CoordinatorLost
    | JoinAnswered
    | TopicsLookedUp
    | SyncAnswered
    | GroupDescribed
    | HeartbeatAnswered
    | ConsumerHeartbeatAnswered
    | TopicsNamed
    | RevocationDone
    | Ticked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinator:
    """Find it, for as long as it takes; then CoordinatorFound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendJoin:
    """Ask to join; `protocols` are (assignor's name, our subscription, raw)."""

    member_id: str
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpTopics:
    """We lead: find out how many partitions these topics have; then TopicsLookedUp."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSync:
    """Ask for our share; `assignments` are (member id, raw), empty unless we lead."""

    member_id: str
    generation_id: int
    protocol: str
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    """Find out what each member is assigned in this generation; then GroupDescribed."""

    generation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHeartbeat:
    """Tell the coordinator that we live."""

    member_id: str
    generation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendConsumerHeartbeat:
    """ConsumerGroupHeartbeat. None: as it was said before; `is_full`: with all that there is.

    `member_epoch` 0: join; below 0: leave. No answer to that is awaited.
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
    """Find out the names of topics with these ids; then TopicsNamed."""

    topic_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLeave:
    """Tell the coordinator that we go. No answer is awaited."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Stop reading `partitions`. Unless `lost` (others may read them already), commit first.

    Then tell the listener; then RevocationDone.
    """

    partitions: tuple[TopicPartition, ...]
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Read `partitions`, of which `added` are new; tell the listener.

    topic_ids: by name, of the assigned topics; none in a classic group, which assigns names.
    """

    partitions: tuple[TopicPartition, ...]
    added: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Raise this from the user's next `poll`: trying again may not help."""

    error_code: int
    message: str | None = None


Effect = (
    FindCoordinator
    | SendJoin
    | LookUpTopics
    | SendSync
    | DescribeGroup
    | SendHeartbeat
    | SendConsumerHeartbeat
    | NameTopics
    | SendLeave
    | Revoke
    | Assign
    | Fail
)

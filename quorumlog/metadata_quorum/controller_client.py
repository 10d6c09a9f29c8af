"""The requests of a broker to the active controller, on any node.

Requests are frozen values, so that they travel as CBOR and replay in a simulator. Every method
raises `ControllerUnavailable` when no active controller answered within the request timeout, or the
response to a change was lost. The outcome is then unknown; the caller decides whether a retry is
safe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from quorumlog.metadata_quorum.cluster_changes import RequestFor
from quorumlog.metadata_quorum.image.details import BrokerDetails
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, PartitionIndex, TopicId

# DEVIATION: Kafka bounds the records of a request, not the topics that it names.
# docs/decisions/0039-limits.md
NAMED_PER_REQUEST_MAX: Final = 10_000  # topics, configurations, partitions to elect for
ResponseT = TypeVar("ResponseT")


class ControllerUnavailable(Exception):
    """No controller answered in time, or its response was lost: the outcome is unknown."""


class RequestTooLarge(ControllerUnavailable):
    """The request names too many items, or has too many bytes: it was not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. `assignments` (partition -> replicas) replaces the two counts.

    A count of -1 means the cluster's default (num.partitions, default.replication.factor).
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """A topic to grow to `count` partitions.

    `assignments`: the replicas of each added partition; None: the controller places them.
    """

    name: str
    count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """The result for one topic of a request. `name` is empty for an unknown topic id."""

    name: str
    error_code: ErrorCode
    error_message: str | None = None
    topic_id: TopicId = TopicId(bytes(16))
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """The result of one election; with NONE, the partition's new leader epoch."""

    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str | None = None
    leader_epoch: Epoch = Epoch(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The target replicas of a partition, the preferred leader first (KIP-455).

    None: cancel the reassignment in progress.
    """

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentResult:
    """The result of one reassignment; with NONE, the partition epoch in which it began."""

    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str | None = None
    partition_epoch: Epoch = Epoch(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """The fetch state of one node at the quorum's leader. Times: ms since 1970; -1: unknown.

    `directory_id`: as text; None: the node sends none, like brokers that cannot become voters.
    """

    replica_id: BrokerId
    log_end_offset: Offset
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1  # its log then reached the leader's log end offset
    directory_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The leader's view of the quorum (KIP-595, KIP-836). `high_watermark`: -1 until it is set.

    `voter_addresses`, `observer_addresses`: `host:port` of the control listeners. An unknown
    address of a voter is empty; an observer without an address is left out.
    """

    leader_id: BrokerId
    leader_epoch: Epoch
    high_watermark: Offset
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    voter_addresses: Mapping[BrokerId, str]
    observer_addresses: Mapping[BrokerId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVoter:
    """A node to add as a voter (KIP-853), with its directory's id and control address.

    `directory_id` is the text form of a UUID; `address` is `host:port`.
    """

    voter_id: BrokerId
    directory_id: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResult:
    """The result of a change of the voters.

    After REQUEST_TIMED_OUT, the change may be committed already or later.
    """

    error_code: ErrorCode
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """AlterPartition (KIP-497) for one partition; `new_isr` pairs (broker id, broker epoch).

    `is_recovering`: the leader has not yet recovered from an unclean election (KIP-704).
    """

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: Epoch
    partition_epoch: Epoch
    new_isr: tuple[tuple[BrokerId, int], ...]
    is_recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrResult:
    """The result for one partition: with NONE, the state that is now committed."""

    topic_id: TopicId
    partition: PartitionIndex
    error_code: ErrorCode
    leader_id: BrokerId = BrokerId(-1)
    leader_epoch: Epoch = Epoch(-1)
    partition_epoch: Epoch = Epoch(-1)
    isr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDirectory:
    """The log directory, by its id, of a broker's replica."""

    directory_id: str
    topic_id: TopicId
    partition: PartitionIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """The intact part of a replica's log, up to `log_end_offset` (exclusive).

    `last_epoch`: the leader epoch of the last record below it, -1 for an empty log. `is_whole`:
    the log has no damage; it may only lack an unflushed tail after a loss of power.
    """

    topic_id: TopicId
    partition: PartitionIndex
    last_epoch: Epoch
    log_end_offset: Offset
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """Producer ids [first, first + count), reserved for one broker (KIP-730)."""

    first: int
    count: int


class ControllerClient(Protocol):
    """Sends a broker's requests to the active controller."""

    @property
    def kraft_version(self) -> int:
        """kraft.version at this node. 0: static voters (configuration); 1: voters of the log."""

    async def ask(self, request: RequestFor[ResponseT]) -> ResponseT:
        """Send a request, and return its response; changes of the metadata are then committed."""

    async def add_voter(
        self, voter: NewVoter, *, ack_when_committed: bool = True
    ) -> VoterChangeResult:
        """Add a voter; answered when the change is committed, or is in the leader's log."""

    async def remove_voter(self, voter_id: BrokerId, directory_id: str) -> VoterChangeResult:
        """Remove a voter; answered after the change is committed."""

    async def upgrade_kraft_version(self, kraft_version: int) -> VoterChangeResult:
        """Raise kraft.version; answered after the change is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReport:
    """The ids of a broker's log directories; empty for a broker with only one directory.

    `has_offline`: a directory is unusable; its id may be unknown. `has_failed`: all directories
    are unusable.
    """

    online: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()
    has_offline: bool = False
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration(BrokerDetails, RequestFor["RegistrationReply"]):
    """The registration of a broker process (KIP-631); each process has a new `incarnation_id`.

    `directory_id`: the id of its metadata log's directory (`meta.properties`).
    `log_dirs`: the ids of its usable log directories, if it has several (KIP-858).
    `has_offline_dirs`: another log directory is unusable.
    `previous_broker_epoch` (KIP-966): the epoch under which the process before this one closed
    every log; -1: it did not, or had no epoch.
    `features`: the range of levels that it supports, for each feature.
    `incarnations`, by log directory id: processes, one of which was registered when the directory
    was last used; empty, if the directory may lack records that this process wrote. None: the
    release before this one did not record them.
    """

    directory_id: str
    previous_broker_epoch: int = -1
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    log_dirs: tuple[str, ...] = ()
    has_offline_dirs: bool = False
    incarnations: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationReply:
    """The response to a registration: with NONE, the broker epoch to use from now on."""

    error_code: ErrorCode
    broker_epoch: int = -1
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat(RequestFor["HeartbeatReply"]):
    """A sign of life of a broker. `metadata_offset`: the last offset it has replayed (inclusive).

    `is_opening`: `want_fence` is set only because the broker still opens its logs, intact so far.
    `offline_log_dirs`: the directories that failed since the process started (KIP-858).
    `has_failed`: all log directories have failed.
    `unanswering`: leaders that leave a fetch of this broker unanswered; None: each answers.
    """

    broker_id: BrokerId
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    is_opening: bool = False
    want_shut_down: bool = False
    offline_log_dirs: tuple[str, ...] = ()
    has_failed: bool = False
    unanswering: tuple[BrokerId, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """The state of the broker at the controller."""

    error_code: ErrorCode
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False

"""The requests of a broker to the active controller, on whichever node that is.

Requests are frozen values, so that they travel as CBOR and replay in a simulator. Every method
raises `ControllerUnavailable` when no active controller answered within the request timeout, or the
answer to a change was lost: the outcome is then unknown, and the caller decides whether asking
again is safe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from quorumlog.metadata_quorum.cluster_changes import ClusterChange, Outcomes
from quorumlog.metadata_quorum.config_changes import ConfigChanges, ConfigResult
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, PartitionIndex, TopicId

# DEVIATION: Kafka bounds the records of a request, not the topics that it names.
# docs/decisions/0032-what-an-admin-request-may-not-do.md
NAMED_PER_REQUEST_MAX: Final = 10_000  # topics, configurations, partitions to elect for


class ControllerUnavailable(Exception):
    """No controller answered in time, or its answer was lost: the outcome is unknown."""


class RequestTooLarge(ControllerUnavailable):
    """The request names too much, or takes too many bytes: it was not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. `assignments` (partition -> replicas) overrides the two counts.

    -1 for a count means the cluster's default (num.partitions, default.replication.factor).
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """A topic to grow to `count` partitions; `assignments`: the replicas of each one added.

    None: the controller places them.
    """

    name: str
    count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """What became of one topic of a request. `name` is empty for an id that no topic has."""

    name: str
    error_code: ErrorCode
    error_message: str | None = None
    topic_id: TopicId = TopicId(bytes(16))
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """What became of one election; with NONE, in which leader epoch the partition is then."""

    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str | None = None
    leader_epoch: Epoch = Epoch(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """Which replicas a partition is to have, the preferred leader first (KIP-455).

    None: the reassignment that is going on is cancelled.
    """

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentResult:
    """What became of one reassignment; with NONE, the partition epoch in which it has begun."""

    topic: str
    partition: int
    error_code: ErrorCode
    error_message: str | None = None
    partition_epoch: Epoch = Epoch(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """What the leader of the quorum knows of one node. Times: ms since 1970; -1: not known.

    `directory_id`: as text; None: the node names none, as brokers that cannot become voters.
    """

    replica_id: BrokerId
    log_end_offset: Offset
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1  # it then held all that the leader had
    directory_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The quorum as its leader sees it (KIP-595, KIP-836). `high_watermark`: -1 until known.

    `voter_addresses`, `observer_addresses`: of the control listeners, `host:port`. A voter's is
    empty while it is not known; an observer without one is left out.
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
    """A node that is to become a voter (KIP-853), with its directory's id and control address.

    `directory_id` is the text form of a UUID; `address` is `host:port`.
    """

    voter_id: BrokerId
    directory_id: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResult:
    """What became of a change of the voters.

    With REQUEST_TIMED_OUT it may have been made, or may still be.
    """

    error_code: ErrorCode
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """AlterPartition (KIP-497) for one partition; `new_isr` pairs (broker id, broker epoch).

    `is_recovering`: the leader has not recovered yet from an unclean election (KIP-704).
    """

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: Epoch
    partition_epoch: Epoch
    new_isr: tuple[tuple[BrokerId, int], ...]
    is_recovering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrResult:
    """The controller's answer: with NONE, the state that is now committed."""

    topic_id: TopicId
    partition: PartitionIndex
    error_code: ErrorCode
    leader_id: BrokerId = BrokerId(-1)
    leader_epoch: Epoch = Epoch(-1)
    partition_epoch: Epoch = Epoch(-1)
    isr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDirectory:
    """In which log directory, by its id, a broker has a replica."""

    directory_id: str
    topic_id: TopicId
    partition: PartitionIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """Up to where the log of a replica is whole: `log_end_offset` is exclusive.

    `last_epoch`: the leader epoch of the last record below it, -1 if there is none. `is_whole`: the
    log lacks nothing that it had, but for what a loss of power has taken from its end.
    """

    topic_id: TopicId
    partition: PartitionIndex
    last_epoch: Epoch
    log_end_offset: Offset
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """Producer ids [first, first + count), which no other broker gets (KIP-730)."""

    first: int
    count: int


class ControllerClient(Protocol):
    """The broker's way to the active controller."""

    @property
    def kraft_version(self) -> int:
        """As this node knows: 0: the voters are those of the configuration; 1: of the log."""

    async def add_voter(
        self, voter: NewVoter, *, ack_when_committed: bool = True
    ) -> VoterChangeResult:
        """Add a voter; answered when it is committed, or is in the leader's log."""

    async def remove_voter(self, voter_id: BrokerId, directory_id: str) -> VoterChangeResult:
        """Remove a voter; answered after the change is committed."""

    async def upgrade_kraft_version(self, kraft_version: int) -> VoterChangeResult:
        """Raise kraft.version; answered after the change is committed."""

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create; a result per topic, after the metadata is committed."""

    async def find_topics(self, names: Sequence[str]) -> list[TopicResult]:
        """Return the ids that the controller knows; a result per name, in their order."""

    async def delete_topics(self, topic_ids: Sequence[TopicId]) -> list[TopicResult]:
        """Delete; a result per id, in their order, after the metadata is committed."""

    async def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Grow; a result per topic, in their order, after the metadata is committed."""

    async def alter_configs(
        self, topics: Sequence[ConfigChanges], *, validate_only: bool = False
    ) -> list[ConfigResult]:
        """Alter; a result per topic, in their order, after the metadata is committed."""

    async def elect_leaders(
        self, partitions: Sequence[tuple[str, int]], *, unclean: bool = False
    ) -> list[ElectionResult]:
        """Elect; a result per (topic, partition), in their order, after the commit."""

    async def alter_reassignments(
        self, wanted: Sequence[Reassignment], *, may_change_replication_factor: bool = True
    ) -> list[ReassignmentResult]:
        """Start, change or cancel; a result per partition, in their order, after the commit."""

    async def change_cluster(self, change: ClusterChange) -> Outcomes:
        """Make the change; answered after the metadata is committed."""

    async def describe_quorum(self) -> QuorumDescription:
        """Ask the leader of the quorum."""

    async def alter_partitions(
        self, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> tuple[ErrorCode, list[IsrResult]]:
        """Propose ISRs; a top-level error (STALE_BROKER_EPOCH, NOT_CONTROLLER) voids them all."""

    async def assign_replicas(
        self, broker_epoch: int, replicas: Sequence[ReplicaDirectory]
    ) -> ErrorCode:
        """Say in which log directories replicas of this broker are; answered after the commit."""

    async def report_logs(self, broker_epoch: int, reports: Sequence[LogReport]) -> ErrorCode:
        """Report logs that are damaged, or may decide who leads; answered after the commit."""

    async def allocate_producer_ids(self, broker_epoch: int) -> tuple[ErrorCode, ProducerIdBlock]:
        """Reserve a block of producer ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReport:
    """The ids of a broker's log directories; none of a broker that has only one directory.

    `has_offline`: one cannot be used, perhaps without its id being known. `has_failed`: none can be
    used any more.
    """

    online: tuple[str, ...] = ()
    offline: tuple[str, ...] = ()
    has_offline: bool = False
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker process announces itself (KIP-631). `incarnation_id` is new with each process.

    `directory_id` is that of its metadata log's directory (`meta.properties`), `log_dirs` those of
    the log directories that it can use, if it was given several, and `has_offline_dirs` says that
    it cannot use another one (KIP-858). `boot_id` is that of the system which
    the machine runs: None if it cannot be read. `previous_broker_epoch` (KIP-966) is the epoch
    with which the process before this one closed every log; -1: it did not, or had none.
    `min_insync_replicas` counts where the broker leads a topic that sets none. `features`: the
    levels that it works with. `incarnations`, by the id of a log directory: the processes of whose
    registrations one was in force when the directory was last used; none, if the directory may lack
    what that process has written. None: the release before did not record them.
    """

    broker_id: BrokerId
    incarnation_id: str
    host: str  # of the Kafka listener, as advertised to clients
    port: int
    control_address: str  # `host:port` of the control listener
    directory_id: str
    rack: str | None = None
    boot_id: str | None = None
    previous_broker_epoch: int = -1
    min_insync_replicas: int = 1
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    log_dirs: tuple[str, ...] = ()
    has_offline_dirs: bool = False
    incarnations: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationReply:
    """The controller's answer: with NONE, the broker epoch to use from now on."""

    error_code: ErrorCode
    broker_epoch: int = -1
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat:
    """A broker is alive. `metadata_offset`: the last offset (inclusive) it has replayed.

    `is_opening`: it wants to be fenced only because it opens its logs, and finds them whole.
    `offline_log_dirs`: those that have failed since the process started (KIP-858). `has_failed`:
    the last one has failed, too.
    """

    broker_id: BrokerId
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    is_opening: bool = False
    want_shut_down: bool = False
    offline_log_dirs: tuple[str, ...] = ()
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """How the controller sees the broker now."""

    error_code: ErrorCode
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False


class BrokerRegistrar(Protocol):
    """How a broker registers and stays registered. Raises as ControllerClient does."""

    async def register_broker(self, registration: BrokerRegistration) -> RegistrationReply:
        """Register; answered after the registration is committed."""

    async def broker_heartbeat(self, heartbeat: BrokerHeartbeat) -> HeartbeatReply:
        """Report; answered after any change of state that it caused is committed."""

"""Requests to the active controller and their responses: frozen, because they travel as CBOR."""

from dataclasses import dataclass, field

from quorumlog.metadata_quorum.cluster_changes import (
    ClusterChange,
    ConfigChanges,
    ConfigResult,
    RequestFor,
)
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    ElectionResult,
    IsrProposal,
    IsrResult,
    LogReport,
    NewPartitions,
    NewTopic,
    ProducerIdBlock,
    QuorumDescription,
    Reassignment,
    ReassignmentResult,
    ReplicaDirectory,
    TopicResult,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics(RequestFor["TopicResults"]):
    """Create each topic on its own: the failure of one leaves the others."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTopics(RequestFor["TopicResults"]):
    """Look up topic ids by name; `DeleteTopics` needs them."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics(RequestFor["TopicResults"]):
    """Delete by id, so that a retry or a late copy never deletes a newer topic (KIP-516)."""

    topic_ids: tuple[TopicId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions(RequestFor["TopicResults"]):
    """Add partitions to each topic on its own: the failure of one leaves the others (KIP-195)."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs(RequestFor["ConfigResults"]):
    """Alter each configuration on its own: the failure of one leaves the others (KIP-339).

    `topics`: the changes of topics, and of brokers where `is_broker`.
    """

    topics: tuple[ConfigChanges, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResults:
    """A result per topic or broker, in the order of the request."""

    results: tuple[ConfigResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders(RequestFor["ElectionResults"]):
    """Elect the first replica of each (topic, partition) as leader (KIP-183, KIP-460).

    `unclean`: for partitions without a leader, elect a replica that may lack records.
    """

    partitions: tuple[tuple[str, int], ...]
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResults:
    """A result per partition, in the order of the request."""

    results: tuple[ElectionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignments(RequestFor["ReassignmentResults"]):
    """Start, change or cancel the reassignment of each partition on its own (KIP-455)."""

    wanted: tuple[Reassignment, ...]
    may_change_replication_factor: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentResults:
    """A result per partition, in the order of the request."""

    results: tuple[ReassignmentResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResults:
    """A result per topic, in the order of the request."""

    results: tuple[TopicResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitions(RequestFor["IsrResults"]):
    """AlterPartition (KIP-497) by the broker that leads the partitions."""

    broker_id: BrokerId
    broker_epoch: int
    proposals: tuple[IsrProposal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrResults:
    """Results of ISR proposals; an `error_code` other than NONE voids all proposals."""

    error_code: ErrorCode
    results: tuple[IsrResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReplicas(RequestFor["ReportReply"]):
    """AssignReplicasToDirs (KIP-858) by the broker that has the replicas.

    # DEVIATION: Kafka assigns LOST to a replica whose directory failed before the assignment.
    # docs/decisions/0017-log-directories.md
    """

    broker_id: BrokerId
    broker_epoch: int
    replicas: tuple[ReplicaDirectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLogs(RequestFor["ReportReply"]):
    """The intact parts of a broker's logs that are damaged, or may decide an election."""

    broker_id: BrokerId
    broker_epoch: int
    reports: tuple[LogReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReply:
    """The response to reports: with NONE, their effect is committed.

    The effect of AssignReplicas: the log directories of all replicas in the metadata.
    """

    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(RequestFor["ProducerIdsReply"]):
    """Reserve a block of producer ids (KIP-730)."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsReply:
    """The response with a block of producer ids: with NONE, reserved for this broker."""

    error_code: ErrorCode
    block: ProducerIdBlock = field(default_factory=lambda: ProducerIdBlock(first=-1, count=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorum(RequestFor[QuorumDescription]):
    """Describe how far each node has replicated the metadata log.

    Sent to the active controller like the other requests, but answered by that node's quorum.
    """


TopicChange = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | ElectLeaders
    | AlterReassignments
)
UserChange = TopicChange | ClusterChange
UserRequest = FindTopics | UserChange
ControllerRequest = (
    BrokerRegistration
    | BrokerHeartbeat
    | AlterPartitions
    | AssignReplicas
    | ReportLogs
    | AllocateProducerIds
    | UserRequest
)

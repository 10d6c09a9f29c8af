"""Requests to the active controller and their answers: frozen, because they travel as CBOR."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from quorumlog.metadata_quorum.cluster_changes import ClusterChange
from quorumlog.metadata_quorum.config_changes import ConfigChanges, ConfigResult
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
    Reassignment,
    ReassignmentResult,
    ReplicaDirectory,
    TopicResult,
)
from quorumlog.metadata_quorum.image.records import MetadataRecord
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId

ResponseT_co = TypeVar("ResponseT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    """Create each topic on its own: one may fail beside another."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FindTopics:
    """Ask for the ids of topics, which `DeleteTopics` needs."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics:
    """Delete by id, so that neither a repetition nor a late copy meets another topic (KIP-516)."""

    topic_ids: tuple[TopicId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """Grow each topic on its own: one may fail beside another (KIP-195)."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs:
    """Alter each configuration on its own: one may fail beside another (KIP-339).

    `topics`: of topics, and of brokers where `is_broker`.
    """

    topics: tuple[ConfigChanges, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResults:
    """A result per topic or broker, in the order of the request."""

    results: tuple[ConfigResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Let the first replica of each (topic, partition) lead (KIP-183, KIP-460).

    `unclean`: elect for those without a leader one that may lack records.
    """

    partitions: tuple[tuple[str, int], ...]
    unclean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResults:
    """A result per partition, in the order of the request."""

    results: tuple[ElectionResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignments:
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
class AlterPartitions:
    """AlterPartition (KIP-497) by the broker that leads the partitions."""

    broker_id: BrokerId
    broker_epoch: int
    proposals: tuple[IsrProposal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrResults:
    """`error_code` other than NONE voids the request as a whole."""

    error_code: ErrorCode
    results: tuple[IsrResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReplicas:
    """AssignReplicasToDirs (KIP-858) by the broker that has the replicas.

    # DEVIATION: Kafka names a replica LOST whose directory failed before it was assigned.
    # docs/decisions/0103-each-log-directory-fails-alone.md
    """

    broker_id: BrokerId
    broker_epoch: int
    replicas: tuple[ReplicaDirectory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLogs:
    """How far a broker's logs are whole: of those that are damaged, or may decide who leads."""

    broker_id: BrokerId
    broker_epoch: int
    reports: tuple[LogReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReply:
    """With NONE, the reports have had their effect, and it is committed."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentReply:
    """With NONE, the directories are committed of all the replicas that the metadata knows."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Ask for a block of producer ids (KIP-730)."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsReply:
    """With NONE, a block that no other broker gets."""

    error_code: ErrorCode
    block: ProducerIdBlock = field(default_factory=lambda: ProducerIdBlock(first=-1, count=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorum:
    """Ask how far each node has replicated the metadata log.

    It goes to the active controller like the others, but that node's quorum answers it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[ResponseT_co]):
    """Append and apply `records`; answer `response` once they are committed.

    They may be split over several batches, so their order is such that every prefix is a legal
    state from which the rest is decided again. `remark` is for the operator. `goes_on`: this is a
    slice; once it is committed, decide again, and answer what the last slice says.
    """

    response: ResponseT_co
    records: tuple[MetadataRecord, ...] = ()
    remark: str | None = None
    goes_on: bool = False

"""The arguments and results of Admin: descriptions of topics, brokers, groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from quorumlog.client.core.metadata_cache import Node, PartitionView
from quorumlog.wire.codec.identifiers import TopicPartition

Election = Literal["preferred", "unclean"]
"""KIP-460: elect the first assigned replica; or any live replica: committed records may be lost."""
OffsetSpec = Literal["earliest", "latest", "max_timestamp"]
ResourceKind = Literal["topic", "broker", "client_metrics", "group"]
ConfigText = str | int | float | bool
"""The value of a setting, before its conversion to Kafka's text."""
UpgradeKind = Literal["upgrade", "safe_downgrade", "unsafe_downgrade"]
"""KIP-584: a safe downgrade keeps all metadata; an unsafe downgrade may lose metadata."""


BROKER_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. -1: the brokers' `num.partitions` or `default.replication.factor`.

    `assignments`: the replicas of each partition, the preferred leader first; with them the two
    numbers stay -1. `configs`: by Kafka's names; numbers and bools are converted to Kafka's text.
    """

    name: str
    num_partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict, kw_only=True)
    configs: Mapping[str, str | int | float | bool] = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new partition count, `total_count`.

    `assignments`: the replicas of each *new* partition, the preferred leader first; empty: the
    controller chooses.
    """

    total_count: int
    assignments: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic in one broker's metadata."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionView]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReassignment:
    """A partition's reassignment in progress (KIP-455). `replicas`: all, old and new."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The live brokers; `controller_id`: a broker that accepts administrative requests."""

    cluster_id: str | None
    controller_id: int
    nodes: Mapping[int, Node]

    def rack(self, broker_id: int) -> str | None:
        """Return the rack of a live broker; None: it has none, or does not live."""
        return self.nodes[broker_id].rack if broker_id in self.nodes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One setting of a resource. `source`: a number of KIP-226, such as 1 for a topic's value."""

    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool


class ConfigResource(NamedTuple):
    """A resource with settings. `kind`: topic, broker, broker_logger, client_metrics, group."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumReplica:
    """A voter or observer in the state of the metadata quorum's leader.

    `log_end_offset` and times are -1 if unknown. `directory_id`: 16 bytes, zeros if unknown.
    """

    replica_id: int
    directory_id: bytes
    log_end_offset: int
    last_fetch_timestamp_ms: int
    last_caught_up_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The metadata quorum (KIP-595). `high_watermark`: the end of the committed records.

    `addresses`: `host:port` of the controllers' listeners, by node id, if the response has them.
    """

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """One log in a directory. `is_future`: the log is being moved to this directory."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirDescription:
    """One log directory of a broker; the bytes of its file system are -1 if unknown (KIP-827).

    `error_code`: 0, or why there are no sizes (KAFKA_STORAGE_ERROR: the directory is offline).
    """

    error_code: int
    total_bytes: int
    usable_bytes: int
    replicas: Mapping[TopicPartition, ReplicaSize]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStateDescription:
    """A producer's state at a partition leader (KIP-664); missing numbers are -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_start_offset: int


CLASSIC_TYPE: Final = "classic"
CONSUMER_TYPE: Final = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionListing:
    """A transactional id, with Kafka's name of its last transaction's state."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """The coordinator's state of a transactional id; `start_ms`: -1 before a first transaction."""

    state: str
    coordinator_id: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One group in its coordinator's list."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """One member of a group, and its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group. `protocol`: the assignor's name, "" while it has none.

    `group_type`: "classic" or "consumer" (KIP-848).
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator_id: int
    members: tuple[MemberDescription, ...]
    group_type: str = CLASSIC_TYPE


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    """A permission for a principal's operation on a resource from a host (KIP-11, KIP-290).

    The words are Kafka's in lower case: `resource_type` "topic", "group", "cluster" (with the name
    "kafka-cluster"), "transactional_id", ...; `pattern_type` "literal" or "prefixed"; `operation`
    "read", "write", "all", ...; `permission` "allow" or "deny".
    """

    resource_type: str
    resource_name: str
    pattern_type: str = "literal"
    principal: str
    host: str = "*"
    operation: str
    permission: str = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """A filter of ACLs; a field that is None matches every value.

    The `pattern_type` "match" matches every pattern that applies to `resource_name`.
    """

    resource_type: str | None = None
    resource_name: str | None = None
    pattern_type: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: str | None = None
    permission: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """The quotas of one entity (KIP-546).

    `entity`: the names by type ("user", "client-id", "ip"); None: the default of the type.
    """

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """A credential, without its secret (KIP-554). `mechanism`: "SCRAM-SHA-256" or "-512"."""

    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewScramCredential:
    """A user's new password. It does not leave the client: brokers receive it salted and hashed."""

    user: str
    password: str = field(repr=False)
    mechanism: str = "SCRAM-SHA-256"
    iterations: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """Levels of a feature (KIP-584). `level`: the finalized level; 0: the feature is off.

    The broker of the request supports [least, greatest]; both None if it has no such feature.
    """

    level: int
    least: int | None
    greatest: int | None

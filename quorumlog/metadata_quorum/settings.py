"""The settings of one node's metadata quorum, and of its controller: Kafka's names and defaults.

Dots in Kafka's names are underscores here. Those of the elections are in `core.settings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.settings import groups
from quorumlog.settings.servers import (
    DEFAULT_REPLICATION_FACTOR,
    NUM_PARTITIONS,
    behind,
    flag,
    integer,
    long,
    row,
)
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.identifiers import BrokerId

NEW_CLUSTER_FILE: Final = "new-cluster"
"""In the log directory of a voter whose cluster is new; gone when the voter has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Cluster-wide defaults, how long a silent broker stays in the cluster, and snapshots."""

    broker_session_timeout_ms: int = integer(
        9000, "After which silence the controller fences a broker."
    )
    auto_leader_rebalance_enable: bool = flag(
        True, "Whether the controller hands leaderships back to preferred replicas, now and then."
    )
    leader_imbalance_check_interval_seconds: int = integer(
        300, "How long the controller waits between two looks for lost leaderships."
    )
    leader_imbalance_per_broker_percentage: int = integer(
        10, "Of how many of its partitions a broker must lack the leadership.", least=0
    )
    metadata_log_max_record_bytes_between_snapshots: int = long(
        20 * 1024 * 1024, "After so many committed bytes of metadata a node writes a snapshot."
    )
    metadata_log_max_snapshot_interval_ms: int = long(
        3_600_000,
        "After which time a node writes a snapshot, if metadata was committed; 0 is never.",
        least=0,
    )
    metadata_log_segment_bytes: int = integer(
        1024 * 1024 * 1024, "How long one file of the metadata log may be; it is deleted whole."
    )
    metadata_max_retention_bytes: int = long(
        100 * 1024 * 1024,
        "From which size on a node deletes metadata records that its snapshots hold; -1 is never.",
        least=-1,
    )
    metadata_max_retention_ms: int = long(
        604_800_000,
        "From which age on a node deletes metadata records that its snapshots hold; -1 is never.",
        least=-1,
    )
    unclean_leader_election_enable: bool = behind(TopicConfig.unclean_leader_election_enable)
    num_partitions: int = row(NUM_PARTITIONS)
    default_replication_factor: int = row(DEFAULT_REPLICATION_FACTOR)

    # What holds for consumer groups that set nothing, and bounds what they set.
    group_consumer_session_timeout_ms: int = row(groups.SESSION_TIMEOUT)
    group_consumer_min_session_timeout_ms: int = row(groups.SESSION_TIMEOUT_MIN)
    group_consumer_max_session_timeout_ms: int = row(groups.SESSION_TIMEOUT_MAX)
    group_consumer_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL)
    group_consumer_min_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL_MIN)
    group_consumer_max_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL_MAX)

    @property
    def log_settings(self) -> LogSettings:
        """Of the metadata log. Time and size alone delete no record: a snapshot must hold it."""
        return LogSettings(segment_bytes=self.metadata_log_segment_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataQuorumSettings:
    """The node, the voters, the place of the log, and how long to wait.

    `voters`: node id -> `host:port` of the control listener. They are in force at kraft.version 0;
    a node that is not among them observes.
    `bootstrap`: addresses to ask for the leader beside those of the voters.
    `directory_id`: of `log_dir`; None: this node cannot become a voter.
    `control_address`: where other nodes reach this node; empty: it does not tell.
    `peer_addresses`: where this node reaches the control listener of another, if not where that
    one says.
    `log_dir`: the metadata log is its sub-directory `__cluster_metadata-0`.
    `listen_host`, `listen_port`: where this node's control listener binds; port 0 is any.
    `is_new_cluster`: a voter that has no `quorum-state` has never voted, and may.
    `shared_secret`: if set, a request without it is refused.
    """

    cluster_id: str
    node_id: BrokerId
    voters: Mapping[BrokerId, str]
    log_dir: str
    bootstrap: tuple[str, ...] = ()
    directory_id: str | None = None
    control_address: str = ""
    peer_addresses: Mapping[BrokerId, str] = field(default_factory=dict)
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    is_new_cluster: bool = False
    shared_secret: str | None = None
    controller_request_timeout_ms: int = 30_000
    """How long a request to the active controller is retried."""
    quorum: QuorumSettings = field(default_factory=QuorumSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)

"""The settings of one node's metadata quorum, and of its controller: Kafka's names and defaults.

Dots in Kafka's names are underscores here. The settings of elections are in `core.settings`.
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
"""A marker file in the log directory of a new cluster's voter; its first start deletes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Cluster-wide defaults, broker sessions, and snapshots and retention of the metadata log."""

    broker_session_timeout_ms: int = integer(
        9000,
        "Time without a heartbeat after which the controller fences a broker; a third of it "
        "if followers report that their fetches are unanswered.",
    )
    auto_leader_rebalance_enable: bool = flag(
        True, "Whether the controller periodically elects the preferred leaders."
    )
    leader_imbalance_check_interval_seconds: int = integer(
        300, "Interval between preferred leader elections, in seconds."
    )
    leader_imbalance_per_broker_percentage: int = integer(
        10, "Minimum percentage of a broker's preferred leaderships that others hold.", least=0
    )
    metadata_log_max_record_bytes_between_snapshots: int = long(
        20 * 1024 * 1024, "Committed bytes of metadata after which a node writes a snapshot."
    )
    metadata_log_max_snapshot_interval_ms: int = long(
        3_600_000,
        "Time after which a node writes a snapshot of newly committed metadata; 0: never.",
        least=0,
    )
    metadata_log_segment_bytes: int = integer(
        1024 * 1024 * 1024,
        "Maximum bytes of a segment of the metadata log, the unit of its deletion.",
    )
    metadata_max_retention_bytes: int = long(
        100 * 1024 * 1024,
        "Log size above which a node deletes metadata records covered by snapshots; -1: never.",
        least=-1,
    )
    metadata_max_retention_ms: int = long(
        604_800_000,
        "Age above which a node deletes metadata records covered by snapshots; -1: never.",
        least=-1,
    )
    unclean_leader_election_enable: bool = behind(TopicConfig.unclean_leader_election_enable)
    num_partitions: int = row(NUM_PARTITIONS)
    default_replication_factor: int = row(DEFAULT_REPLICATION_FACTOR)

    # Defaults and bounds of the settings of consumer groups.
    group_consumer_session_timeout_ms: int = row(groups.SESSION_TIMEOUT)
    group_consumer_min_session_timeout_ms: int = row(groups.SESSION_TIMEOUT_MIN)
    group_consumer_max_session_timeout_ms: int = row(groups.SESSION_TIMEOUT_MAX)
    group_consumer_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL)
    group_consumer_min_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL_MIN)
    group_consumer_max_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL_MAX)

    @property
    def log_settings(self) -> LogSettings:
        """Settings of the metadata log. Age and size delete only records that a snapshot holds."""
        return LogSettings(segment_bytes=self.metadata_log_segment_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataQuorumSettings:
    """The node, the voters, the place of the log, and the timeouts.

    `voters`: node id -> `host:port` of the control listener. They are in force at kraft.version 0;
    any other node is an observer.
    `bootstrap`: addresses, beside the voters', at which to find the leader.
    `directory_id`: the id of `log_dir`; None: this node cannot become a voter.
    `control_address`: the address that this node sends to other nodes; empty: it sends none.
    `peer_addresses`: addresses of other nodes' control listeners, in place of the addresses that
    those nodes send.
    `log_dir`: the metadata log is its sub-directory `__cluster_metadata-0`.
    `listen_host`, `listen_port`: the address of this node's control listener; port 0: any port.
    `is_new_cluster`: a voter without a `quorum-state` has never voted, and may vote.
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
    """The time for which a request to the active controller is retried."""
    quorum: QuorumSettings = field(default_factory=QuorumSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)

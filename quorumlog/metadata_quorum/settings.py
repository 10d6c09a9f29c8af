"""The settings of one node's metadata quorum, and of its controller: Kafka's names and defaults.

Dots in Kafka's names are underscores here. Those of the elections are in `core.settings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.settings.servers import DEFAULT_REPLICATION_FACTOR, NUM_PARTITIONS, integer, row
from quorumlog.wire.codec.identifiers import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Cluster-wide defaults, and how long a silent broker stays in the cluster."""

    broker_session_timeout_ms: int = integer(
        9000, "After which silence the controller fences a broker."
    )
    num_partitions: int = row(NUM_PARTITIONS)
    default_replication_factor: int = row(DEFAULT_REPLICATION_FACTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataQuorumSettings:
    """The node, the voters, the place of the log, and how long to wait.

    `voters`: node id -> `host:port` of the control listener. A node that is not in it observes.
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
    peer_addresses: Mapping[BrokerId, str] = field(default_factory=dict)
    listen_host: str = "127.0.0.1"
    listen_port: int = 0
    is_new_cluster: bool = False
    shared_secret: str | None = None
    controller_request_timeout_ms: int = 30_000
    """How long a request to the active controller is retried."""
    quorum: QuorumSettings = field(default_factory=QuorumSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)

    def voter_address(self, node_id: BrokerId) -> str:
        """Return where this node reaches the control listener of a voter."""
        return self.peer_addresses.get(node_id) or self.voters[node_id]

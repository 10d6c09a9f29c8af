"""The settings that the active controller reads: Kafka's names (dots are underscores here)."""

from dataclasses import dataclass

from quorumlog.settings.servers import DEFAULT_REPLICATION_FACTOR, NUM_PARTITIONS, integer, row


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Cluster-wide defaults and the broker session."""

    broker_session_timeout_ms: int = integer(
        9000, "After which silence the controller fences a broker."
    )
    num_partitions: int = row(NUM_PARTITIONS)
    default_replication_factor: int = row(DEFAULT_REPLICATION_FACTOR)

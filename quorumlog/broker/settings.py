"""The settings of a broker: Kafka's names (dots are underscores here) and defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from quorumlog.settings import authorization, groups
from quorumlog.settings.kinds import INT_MAX, OFF, choice, items
from quorumlog.settings.releases import NEWEST, RELEASES
from quorumlog.settings.servers import (
    ALTER_LOG_DIRS_RATE,
    DEFAULT_REPLICATION_FACTOR,
    FOLLOWER_THROTTLED_RATE,
    LEADER_THROTTLED_RATE,
    LOG_CLEANER_BACKOFF,
    LOG_CLEANER_RATE,
    MAX_CONNECTION_RATE,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    NUM_PARTITIONS,
    PRODUCER_ID_EXPIRATION,
    ServerSetting,
    behind,
    flag,
    integer,
    long,
    row,
    rows_of,
)
from quorumlog.settings.topics import SEGMENT_BYTES_MIN, TopicConfig

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleSettings:
    """The settings of registration and heartbeats."""

    broker_heartbeat_interval_ms: int = integer(
        2000, "Interval between a broker's heartbeats to the controller."
    )
    initial_broker_registration_timeout_ms: int = integer(
        60_000, "Time after which a broker that cannot register stops."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of topics, replication, requests and groups in `server.properties`."""

    num_partitions: int = row(NUM_PARTITIONS)
    default_replication_factor: int = row(DEFAULT_REPLICATION_FACTOR)
    auto_create_topics_enable: bool = flag(
        True, "Whether a metadata request with auto-creation creates a missing topic."
    )
    delete_topic_enable: bool = flag(True, "Whether clients may delete topics.")

    # Produce.
    min_insync_replicas: int = behind(TopicConfig.min_insync_replicas)
    message_max_bytes: int = behind(TopicConfig.max_message_bytes)
    compression_type: str = behind(TopicConfig.compression_type)
    compression_gzip_level: int = behind(TopicConfig.compression_gzip_level)
    compression_lz4_level: int = behind(TopicConfig.compression_lz4_level)
    compression_zstd_level: int = behind(TopicConfig.compression_zstd_level)
    log_message_timestamp_before_max_ms: int = behind(TopicConfig.message_timestamp_before_max_ms)
    log_message_timestamp_after_max_ms: int = behind(TopicConfig.message_timestamp_after_max_ms)
    log_message_timestamp_type: str = behind(TopicConfig.message_timestamp_type)
    producer_id_expiration_ms: int = row(PRODUCER_ID_EXPIRATION)
    producer_id_expiration_check_interval_ms: int = integer(
        600_000, "Interval between checks for expired producers."
    )

    transaction_partition_verification_enable: bool = flag(
        True,
        "Whether a leader verifies with the coordinator that a client added the partition to its "
        "transaction (KIP-890). Leaders add partitions for newer clients, with either value.",
    )

    # Durability.
    # DEVIATION: not in Kafka. docs/decisions/0015-flush-acks.md
    log_flush_acks: bool = flag(
        False,
        "Whether a record counts as replicated, and is acknowledged, only when it is flushed: then "
        "no acknowledged record is lost if all nodes lose power at once. Not in Kafka.",
    )

    # Retention.
    log_cleaner_backoff_ms: int = row(LOG_CLEANER_BACKOFF)
    log_cleaner_delete_retention_ms: int = behind(TopicConfig.delete_retention_ms)
    log_cleaner_io_max_bytes_per_second: float = row(LOG_CLEANER_RATE)
    log_cleaner_max_compaction_lag_ms: int = behind(TopicConfig.max_compaction_lag_ms)
    log_cleaner_min_cleanable_ratio: float = behind(TopicConfig.min_cleanable_dirty_ratio)
    log_cleaner_min_compaction_lag_ms: int = behind(TopicConfig.min_compaction_lag_ms)
    log_retention_ms: int = behind(TopicConfig.retention_ms)
    log_retention_bytes: int = behind(TopicConfig.retention_bytes)
    log_segment_delete_delay_ms: int = behind(TopicConfig.file_delete_delay_ms)
    log_retention_check_interval_ms: int = long(300_000, "Interval between retention checks.")

    # Fetch.
    fetch_max_bytes: int = integer(57_671_680, "Maximum bytes of one fetch response to a consumer.")
    max_incremental_fetch_session_cache_slots: int = integer(
        1000, "Maximum number of fetch sessions (KIP-227).", least=0
    )
    replica_selector_class: str = row(
        ServerSetting(
            kind=choice("", LEADER_SELECTOR, RACK_SELECTOR),
            default="",
            documentation="The replica that a leader chooses for a consumer's fetches (KIP-392): "
            "one in the consumer's rack with RackAwareReplicaSelector, else the leader.",
        )
    )

    # Replication.
    replica_lag_time_max_ms: int = long(
        30_000, "Maximum time that a follower lags before it leaves the ISR."
    )
    replica_fetch_wait_max_ms: int = integer(
        500, "Maximum time that a follower's fetch waits for records.", least=0
    )
    replica_fetch_min_bytes: int = integer(
        1, "Minimum bytes of a fetch response to a follower.", least=0
    )
    replica_fetch_max_bytes: int = integer(
        1_048_576, "Maximum bytes of one partition in a follower's fetch.", least=0
    )
    replica_fetch_response_max_bytes: int = integer(
        10_485_760, "Maximum bytes of a follower's fetch.", least=0
    )
    replica_fetch_backoff_ms: int = integer(
        1000, "Delay of a follower after a failed fetch.", least=0
    )
    follower_replication_throttled_rate: int = row(FOLLOWER_THROTTLED_RATE)
    leader_replication_throttled_rate: int = row(LEADER_THROTTLED_RATE)
    replica_alter_log_dirs_io_max_bytes_per_second: int = row(ALTER_LOG_DIRS_RATE)
    remote_log_storage_system_enable: bool = row(
        ServerSetting(
            kind=OFF,
            default="false",
            documentation="Whether the broker has tiered storage (KIP-405); only false is "
            "supported.",
        )
    )
    replica_socket_timeout_ms: int = integer(30_000, "Timeout of a follower's request to a leader.")
    replica_high_watermark_checkpoint_interval_ms: int = long(
        5000, "Interval between writes of the high watermark checkpoint."
    )

    # Connections.
    socket_request_max_bytes: int = integer(104_857_600, "Maximum bytes of a request.")
    queued_max_requests: int = integer(
        500, "Maximum requests of one connection without a response."
    )
    max_request_partition_size_limit: int = integer(
        2000, "Maximum partitions in one DescribeTopicPartitions response."
    )
    # DEVIATION: not in Kafka, which sends all records from the page cache.
    # docs/decisions/0039-limits.md
    queued_max_response_bytes: int = long(
        104_857_600,
        "Memory limit of fetch responses that consumers have not yet received, without records "
        "that are sent from files. Not in Kafka.",
    )
    max_connections: int = row(MAX_CONNECTIONS)
    max_connections_per_ip: int = row(MAX_CONNECTIONS_PER_IP)
    max_connections_per_ip_overrides: str = row(MAX_CONNECTIONS_PER_IP_OVERRIDES)
    max_connection_creation_rate: int = row(MAX_CONNECTION_RATE)
    metrics_partitions_max: int = integer(
        1000,
        "Maximum number of replicas of a node, and of committed offsets of its groups, up to which "
        "GET /metrics has families with a sample for each of them; 0: none. Not in Kafka.",
        least=0,
    )
    client_telemetry: bool = flag(
        False,
        "Whether clients may report their own metrics (KIP-714), for GET /metrics. Not in Kafka, "
        "where a metrics reporter receives them.",
    )
    telemetry_max_bytes: int = integer(1_048_576, "Maximum bytes of a report of a client.")
    connections_max_idle_ms: int = long(600_000, "Time after which an idle connection is closed.")

    # Quotas: decision 63.
    quota_window_num: int = integer(
        11, "Number of samples over which the rates of clients and connections are measured."
    )
    quota_window_size_seconds: int = integer(1, "Length of each of these samples.")
    controller_quota_window_num: int = integer(
        11, "Number of samples whose rate of created and deleted partitions can be used at once."
    )
    controller_quota_window_size_seconds: int = integer(1, "Length of each of these samples.")

    # DEVIATION: not in Kafka. docs/decisions/0009-feature-levels.md
    as_version: str = row(
        ServerSetting(
            kind=choice(*RELEASES, NEWEST),
            default=NEWEST,
            documentation="A release of Apache Kafka: clients get no API, version or feature that "
            "this release lacks. newest: all of this broker. Not in Kafka.",
        )
    )

    # Authorization.
    authorizer_class_name: str = row(authorization.AUTHORIZER)
    super_users: str = row(authorization.SUPER_USERS)
    allow_everyone_if_no_acl_found: bool = row(authorization.EVERYONE_WITHOUT_ACL)

    # The `__consumer_offsets` topic.
    offsets_topic_num_partitions: int = integer(50, "Number of partitions of __consumer_offsets.")
    offsets_topic_replication_factor: int = integer(3, "Replication factor of __consumer_offsets.")
    # DEVIATION: Kafka takes 1. The controller refuses a topic with such segments, so that groups
    # would have no coordinator. docs/decisions/0040-accepted-without-effect.md
    offsets_topic_segment_bytes: int = integer(
        104_857_600, "segment.bytes of __consumer_offsets.", least=SEGMENT_BYTES_MIN
    )
    offsets_retention_minutes: int = integer(
        10_080, "Retention of committed offsets of empty groups, and of topics without subscribers."
    )
    offsets_retention_check_interval_ms: int = long(
        600_000, "Interval between checks for expired offsets."
    )
    offsets_commit_timeout_ms: int = integer(
        5000, "Maximum time that an offset commit waits for replication."
    )
    offsets_load_buffer_size: int = integer(
        5_242_880, "Bytes per read when a coordinator loads __consumer_offsets."
    )
    offset_metadata_max_bytes: int = integer(
        4096, "Maximum size of the metadata of a committed offset.", least=0
    )

    # Transactions, and the `__transaction_state` topic.
    transaction_max_timeout_ms: int = integer(900_000, "Maximum transaction timeout of a producer.")
    transactional_id_expiration_ms: int = integer(
        604_800_000, "Time until an unused transactional id expires."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        10_000,
        "How often transactions that last too long are aborted: each at the next multiple of this; "
        "1: as soon as its time is over.",
    )
    transaction_state_log_num_partitions: int = integer(
        50, "Number of partitions of __transaction_state."
    )
    transaction_state_log_replication_factor: int = integer(
        3, "Replication factor of __transaction_state."
    )
    transaction_state_log_min_isr: int = integer(2, "min.insync.replicas of __transaction_state.")
    # DEVIATION: Kafka takes 1, as above.
    # docs/decisions/0040-accepted-without-effect.md
    transaction_state_log_segment_bytes: int = integer(
        104_857_600, "segment.bytes of __transaction_state.", least=SEGMENT_BYTES_MIN
    )
    transaction_state_log_load_buffer_size: int = integer(
        5_242_880, "Bytes per read when a coordinator loads __transaction_state."
    )
    add_partitions_to_txn_retry_backoff_ms: int = integer(
        20,
        "Maximum time that an addition to a transaction waits at the coordinator for the end of "
        "the previous transaction, and the delay of a leader before it retries.",
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = integer(
        100, "Maximum time of the leader's retries; then the producer must retry.", least=0
    )

    # Classic groups.
    group_min_session_timeout_ms: int = integer(6000, "Minimum session timeout of a group member.")
    group_max_session_timeout_ms: int = integer(
        1_800_000, "Maximum session timeout of a group member."
    )
    group_initial_rebalance_delay_ms: int = integer(
        3000, "Delay of a new group's first rebalance, for more members to join.", least=0
    )
    group_max_size: int = integer(INT_MAX, "Maximum members of a group.")

    # Groups of the consumer protocol (KIP-848).
    group_coordinator_rebalance_protocols: str = row(
        ServerSetting(
            kind=items("classic", "consumer", least=1),
            default="classic,consumer",
            documentation="Enabled group protocols: classic, consumer.",
        )
    )
    group_consumer_session_timeout_ms: int = row(groups.SESSION_TIMEOUT)
    group_consumer_min_session_timeout_ms: int = row(groups.SESSION_TIMEOUT_MIN)
    group_consumer_max_session_timeout_ms: int = row(groups.SESSION_TIMEOUT_MAX)
    group_consumer_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL)
    group_consumer_min_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL_MIN)
    group_consumer_max_heartbeat_interval_ms: int = row(groups.HEARTBEAT_INTERVAL_MAX)
    group_consumer_max_size: int = integer(INT_MAX, "Maximum members of a consumer group.")
    group_consumer_assignors: str = row(
        ServerSetting(
            kind=items("uniform", "range", least=1),
            default="uniform,range",
            documentation="The assignors of consumer groups; the first is the default of groups "
            "whose members choose none.",
        )
    )
    group_consumer_migration_policy: str = row(
        ServerSetting(
            kind=choice("bidirectional", "upgrade", "downgrade", "disabled"),
            default="bidirectional",
            documentation="Allowed protocol changes of groups with members: from classic to "
            "consumer (upgrade), and back (downgrade).",
        )
    )


def altered(settings: BrokerSettings, texts: Mapping[str, str]) -> BrokerSettings:
    """Return the settings with these values, by Kafka's names, in place of their own."""
    rows = rows_of(BrokerSettings).items()
    return replace(
        settings,
        **{field: row.kind.parse(texts[row.name]) for field, row in rows if row.name in texts},
    )

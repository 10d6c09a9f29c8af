"""A broker's settings: Kafka's names (dots are underscores here), units and defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What `server.properties` says about topics, replication, requests and groups."""

    # Topics made without being told better; -1 in a request means these.
    num_partitions: int = 1
    default_replication_factor: int = 1
    auto_create_topics_enable: bool = True
    delete_topic_enable: bool = True

    # Produce.
    min_insync_replicas: int = 1
    message_max_bytes: int = 1_048_588  # of one batch, compressed, with its header
    log_message_timestamp_before_max_ms: int = 9_223_372_036_854_775_807
    log_message_timestamp_after_max_ms: int = 3_600_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000

    # Fetch.
    fetch_max_bytes: int = 57_671_680  # 55 MiB: caps what a consumer may ask for

    max_incremental_fetch_session_cache_slots: int = 1000

    # Replication.
    replica_lag_time_max_ms: int = 30_000
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 1_048_576  # per partition
    replica_fetch_response_max_bytes: int = 10_485_760  # per response
    replica_fetch_backoff_ms: int = 1000
    replica_socket_timeout_ms: int = 30_000
    replica_high_watermark_checkpoint_interval_ms: int = 5000

    # Connections.
    socket_request_max_bytes: int = 104_857_600
    queued_max_requests: int = 500
    max_request_partition_size_limit: int = 2000  # of one answer to DescribeTopicPartitions
    # DEVIATION: not in Kafka, which sends records from the page cache.
    # docs/decisions/0026-what-consumers-do-not-take-has-one-limit.md
    queued_max_response_bytes: int = 104_857_600  # of records that consumers have not taken
    max_connections: int = 2_147_483_647
    connections_max_idle_ms: int = 600_000

    # The `__consumer_offsets` topic.
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offsets_commit_timeout_ms: int = 5000
    offsets_load_buffer_size: int = 5_242_880
    offset_metadata_max_bytes: int = 4096

    # Classic groups.
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = 2_147_483_647

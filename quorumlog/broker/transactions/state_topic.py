"""What `__transaction_state` is like when the first request that needs it creates it."""

from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.wire.codec.topic_names import TRANSACTIONS_TOPIC


def transactions_topic(settings: BrokerSettings) -> NewTopic:
    """Return the topic to create, by Kafka's settings `transaction.state.log.*`."""
    return NewTopic(
        name=TRANSACTIONS_TOPIC,
        partitions=settings.transaction_state_log_num_partitions,
        replication_factor=settings.transaction_state_log_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(settings.transaction_state_log_min_isr),
            "segment.bytes": str(settings.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )

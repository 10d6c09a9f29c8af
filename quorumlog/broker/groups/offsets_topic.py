"""What `__consumer_offsets` is like when the first request that needs it creates it."""

from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC


def offsets_topic(settings: BrokerSettings) -> NewTopic:
    """Return the topic to create, by Kafka's settings `offsets.topic.*`."""
    return NewTopic(
        name=OFFSETS_TOPIC,
        partitions=settings.offsets_topic_num_partitions,
        replication_factor=settings.offsets_topic_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        },
    )

"""Producer, Consumer and Admin, on wire alone."""

from quorumlog.client.admin import Admin
from quorumlog.client.consumer import Consumer
from quorumlog.client.descriptions import NewTopic
from quorumlog.client.errors import KafkaError
from quorumlog.client.producer import Delivery, Producer
from quorumlog.client.rebalance import RebalanceListener
from quorumlog.client.records import (
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TopicPartition,
)

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "KafkaError",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "RebalanceListener",
    "RecordMetadata",
    "TopicPartition",
]

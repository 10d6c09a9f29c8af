"""Producer, Consumer and Admin, on wire alone."""

from quorumlog.client.admin import Admin
from quorumlog.client.consumer import Consumer
from quorumlog.client.descriptions import NewPartitions, NewTopic
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.deliveries import Delivery
from quorumlog.client.producer import Producer
from quorumlog.client.rebalance import RebalanceListener
from quorumlog.client.records import (
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TopicPartition,
)
from quorumlog.wire.codec.error_codes import ErrorCode

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "ErrorCode",
    "KafkaError",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "RebalanceListener",
    "RecordMetadata",
    "TopicPartition",
]

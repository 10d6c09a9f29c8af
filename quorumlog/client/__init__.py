"""Producer, Consumer and Admin, based on `wire` alone. Each is loaded at its first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorumlog.client.admin import Admin
    from quorumlog.client.assignor import Assignor, Subscription
    from quorumlog.client.consumer import Consumer
    from quorumlog.client.descriptions import (
        Acl,
        AclFilter,
        NewPartitions,
        NewScramCredential,
        NewTopic,
    )
    from quorumlog.client.errors import (
        AssignorError,
        CallableError,
        DeserializationError,
        KafkaError,
    )
    from quorumlog.client.interceptors import ConsumerInterceptor, ProducerInterceptor
    from quorumlog.client.io.delivery import Deliveries, Delivery
    from quorumlog.client.producer import Producer
    from quorumlog.client.rebalance_listener import RebalanceListener
    from quorumlog.client.records import (
        ConsumerRecord,
        GroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        ProducerRecord,
        RecordMetadata,
        TopicPartition,
    )
    from quorumlog.client.transforms import transform
    from quorumlog.wire.codec.error_codes import ErrorCode

__all__ = [
    "Acl", "AclFilter", "Admin", "Assignor", "AssignorError", "CallableError", "Consumer",
    "ConsumerInterceptor", "ConsumerRecord", "Deliveries", "Delivery", "DeserializationError",
    "ErrorCode", "GroupMetadata", "KafkaError", "NewPartitions", "NewScramCredential", "NewTopic",
    "OffsetAndMetadata", "OffsetAndTimestamp", "Producer", "ProducerInterceptor",
    "ProducerRecord", "RebalanceListener", "RecordMetadata", "Subscription", "TopicPartition",
    "transform",
]  # fmt: skip

_HOME = {
    "Acl": "quorumlog.client.descriptions",
    "AclFilter": "quorumlog.client.descriptions",
    "Admin": "quorumlog.client.admin",
    "Assignor": "quorumlog.client.assignor",
    "AssignorError": "quorumlog.client.errors",
    "CallableError": "quorumlog.client.errors",
    "Consumer": "quorumlog.client.consumer",
    "ConsumerInterceptor": "quorumlog.client.interceptors",
    "ConsumerRecord": "quorumlog.client.records",
    "Deliveries": "quorumlog.client.io.delivery",
    "Delivery": "quorumlog.client.io.delivery",
    "DeserializationError": "quorumlog.client.errors",
    "ErrorCode": "quorumlog.wire.codec.error_codes",
    "GroupMetadata": "quorumlog.client.records",
    "KafkaError": "quorumlog.client.errors",
    "NewPartitions": "quorumlog.client.descriptions",
    "NewScramCredential": "quorumlog.client.descriptions",
    "NewTopic": "quorumlog.client.descriptions",
    "OffsetAndMetadata": "quorumlog.client.records",
    "OffsetAndTimestamp": "quorumlog.client.records",
    "Producer": "quorumlog.client.producer",
    "ProducerInterceptor": "quorumlog.client.interceptors",
    "ProducerRecord": "quorumlog.client.records",
    "RebalanceListener": "quorumlog.client.rebalance_listener",
    "RecordMetadata": "quorumlog.client.records",
    "Subscription": "quorumlog.client.assignor",
    "TopicPartition": "quorumlog.client.records",
    "transform": "quorumlog.client.transforms",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__

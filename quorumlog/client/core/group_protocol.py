"""The "consumer" protocol: bytes that members of a classic group exchange by the coordinator.

The group's leader decodes them; the coordinator does not. Each message starts with a version;
fields that a newer version appends are skipped. Source: KIP-54's ConsumerProtocol, version 1 (with
owned partitions, KIP-429), and the generation of version 2 (KIP-792).
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from quorumlog.client.core.assignors import Subscription
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.messages import (
    consumer_protocol_assignment,
    consumer_protocol_subscription,
)
from quorumlog.wire.codec.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from quorumlog.wire.codec.schemas import decode_message, encode_message

PROTOCOL_TYPE: Final = "consumer"
SUBSCRIPTION_VERSION: Final = 2
ASSIGNMENT_VERSION: Final = 0
VERSION_BYTES: Final = 2


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode the subscription that a member sends with JoinGroup."""
    owned = [
        consumer_protocol_subscription.TopicPartition(topic=topic, partitions=partitions)
        for topic, partitions in by_topic(subscription.owned).items()
    ]
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        owned_partitions=owned,
        generation_id=subscription.generation_id,
    )
    return _versioned(SUBSCRIPTION_VERSION, encode_message(message, SUBSCRIPTION_VERSION))


def decode_subscription(data: bytes, instance_id: str | None) -> Subscription:
    """Decode the subscription that a member sent with JoinGroup. Raises MalformedFrame."""
    version = min(_version(data), max(ConsumerProtocolSubscription.VERSIONS))
    message = decode_message(ConsumerProtocolSubscription, version, data[VERSION_BYTES:])
    owned = [
        TopicPartition(topic.topic, partition)
        for topic in message.owned_partitions
        for partition in topic.partitions
    ]
    return Subscription(
        topics=tuple(message.topics),
        instance_id=instance_id,
        owned=tuple(owned),
        generation_id=message.generation_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode one member's assignment, which the leader sends with SyncGroup."""
    assigned = [
        consumer_protocol_assignment.TopicPartition(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(partitions).items()
    ]
    message = ConsumerProtocolAssignment(assigned_partitions=assigned)
    return _versioned(ASSIGNMENT_VERSION, encode_message(message, ASSIGNMENT_VERSION))


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode a SyncGroup response's assignment, sorted; b"" is empty. Raises MalformedFrame."""
    if not data:
        return ()
    version = min(_version(data), max(ConsumerProtocolAssignment.VERSIONS))
    message = decode_message(ConsumerProtocolAssignment, version, data[VERSION_BYTES:])
    return tuple(
        sorted(
            TopicPartition(topic.topic, partition)
            for topic in message.assigned_partitions
            for partition in topic.partitions
        )
    )


def decode_assignments(assignments: Iterable[bytes] | None) -> frozenset[TopicPartition]:
    """Return the partitions assigned to all members; undecodable assignments are skipped."""
    assigned: set[TopicPartition] = set()
    for data in assignments or ():
        with suppress(MalformedFrame):
            assigned.update(decode_assignment(data))
    return frozenset(assigned)


def _version(data: bytes) -> int:
    version = int.from_bytes(data[:VERSION_BYTES], "big", signed=True)
    if version < 0:
        raise MalformedFrame(f"a group member's message has version {version}")
    return version


def _versioned(version: int, body: list[Buffer]) -> bytes:
    return version.to_bytes(VERSION_BYTES, "big") + b"".join(body)

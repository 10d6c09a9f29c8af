"""The "consumer" protocol: bytes that members of a classic group exchange by the coordinator.

The group's leader decodes them; the coordinator does not. Each message starts with a version;
fields that a newer version appends are skipped. Source: KIP-54's ConsumerProtocol, version 1 (with
owned partitions, KIP-429), the generation of version 2 (KIP-792) and the rack of version 3
(KIP-881). Members of the assignor "sticky" are eager and own nothing when they join: they send
their last assignment as the user data of Kafka's StickyAssignor, version 1.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from quorumlog.client.assignor import Subscription
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Buffer, Message, wire
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
STICKY: Final = "sticky"
SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 0
VERSION_BYTES: Final = 2


class StickyUserData(Message):
    """The user data of Kafka's StickyAssignor, versions 0 and 1; the bytes have no version."""

    VERSIONS = range(2)
    FLEXIBLE_SINCE = 2
    previous_assignment: list[consumer_protocol_assignment.TopicPartition] = wire(
        [consumer_protocol_assignment.TopicPartition], "0+", default_factory=list
    )
    generation_id: int = wire("int32", "1+", default=-1)


def encode_subscription(subscription: Subscription, assignor: str = "") -> bytes:
    """Encode the subscription that a member sends with JoinGroup for one assignor."""
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics), rack_id=subscription.rack
    )
    if assignor == STICKY:
        sticky = StickyUserData(
            previous_assignment=_topics(subscription.owned),
            generation_id=subscription.generation_id,
        )
        message.user_data = b"".join(encode_message(sticky, max(StickyUserData.VERSIONS)))
    else:
        message.generation_id = subscription.generation_id
        message.owned_partitions = [
            consumer_protocol_subscription.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(subscription.owned).items()
        ]
    return _versioned(SUBSCRIPTION_VERSION, encode_message(message, SUBSCRIPTION_VERSION))


def decode_subscription(
    data: bytes, instance_id: str | None = None, assignor: str = ""
) -> Subscription:
    """Decode the subscription that a member sent with JoinGroup. Raises MalformedFrame."""
    version = min(_version(data), max(ConsumerProtocolSubscription.VERSIONS))
    message = decode_message(ConsumerProtocolSubscription, version, data[VERSION_BYTES:])
    owned = [(topic.topic, topic.partitions) for topic in message.owned_partitions]
    generation_id = message.generation_id
    if assignor == STICKY:
        sticky = _decode_sticky(message.user_data or b"")
        owned = [(topic.topic, topic.partitions) for topic in sticky.previous_assignment]
        generation_id = sticky.generation_id
    return Subscription(
        topics=tuple(message.topics),
        instance_id=instance_id,
        owned=tuple(TopicPartition(topic, one) for topic, indexes in owned for one in indexes),
        generation_id=generation_id,
        rack=message.rack_id,
    )


def _decode_sticky(data: bytes) -> StickyUserData:
    """Decode user data of any version; without valid data a member owns nothing, as in Kafka."""
    for version in reversed(StickyUserData.VERSIONS):
        with suppress(MalformedFrame):
            return decode_message(StickyUserData, version, data)
    return StickyUserData()


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode one member's assignment, which the leader sends with SyncGroup."""
    message = ConsumerProtocolAssignment(assigned_partitions=_topics(partitions))
    return _versioned(ASSIGNMENT_VERSION, encode_message(message, ASSIGNMENT_VERSION))


def _topics(
    partitions: Iterable[TopicPartition],
) -> list[consumer_protocol_assignment.TopicPartition]:
    return [
        consumer_protocol_assignment.TopicPartition(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(partitions).items()
    ]


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

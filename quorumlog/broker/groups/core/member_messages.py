"""The subscriptions and assignments that members of a classic group exchange with its leader.

The coordinator passes them on as bytes. The formats are those of the protocol type `consumer`
(KIP-54, KIP-429, KIP-792); fields that a newer version appends are ignored. Other protocol types
have formats of their own.
"""

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from quorumlog.broker.coordination.core.versioned_messages import VERSION_BYTES, version_of
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Message
from quorumlog.wire.codec.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from quorumlog.wire.codec.schemas import decode_message

CONSUMER: Final = "consumer"  # the protocol type whose messages can be read
MessageT = TypeVar("MessageT", bound=Message)


class _Topic(Protocol):
    topic: str
    partitions: list[int]


def read_message(kind: type[MessageT], data: bytes) -> MessageT:
    """Return the message in a member's bytes. Raises MalformedFrame."""
    version = version_of(data)
    if len(data) < VERSION_BYTES or version < 0:
        raise MalformedFrame(f"{kind.__name__} in {len(data)} bytes")
    known = min(version, kind.VERSIONS[-1])
    return decode_message(kind, known, memoryview(data)[VERSION_BYTES:])


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """Return the topics of a subscription. Raises MalformedFrame.

    Every version begins with the topics. Later fields are not read: some clients send a newer
    version number than the version they write.
    """
    if len(metadata) < VERSION_BYTES:
        raise MalformedFrame(f"a subscription of {len(metadata)} bytes")
    body = memoryview(metadata)[VERSION_BYTES:]
    return frozenset(decode_message(ConsumerProtocolSubscription, 0, body).topics)


def unrevoked(metadata: bytes, assignment: bytes) -> frozenset[TopicPartition]:
    """Return partitions owned at the join and not assigned after it. Raises MalformedFrame.

    A cooperative member (KIP-429) revokes these partitions, then joins again. Only after that may
    another member have them.
    """
    owned = _partitions(read_message(ConsumerProtocolSubscription, metadata).owned_partitions)
    if not owned or not assignment:
        return owned
    assigned = read_message(ConsumerProtocolAssignment, assignment).assigned_partitions
    return owned - _partitions(assigned)


def _partitions(topics: Iterable[_Topic]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(one.topic, index) for one in topics for index in one.partitions)

"""The records of groups of the consumer protocol in `__consumer_offsets`, in Kafka's own format.

Keys by version: 3 the group, 4 metadata of its topics (which Kafka 4.0 wrote and 4.1 deletes), 5 a
member, 6 the target assignment, 7 a member's part of it, 8 a member's current assignment, 16 a
regular expression. Values are of version 0, each behind its version as an int16; an empty value
(None) is a tombstone. Tagged fields that a newer version adds are skipped. Sources: the schemas of
Kafka's group coordinator, KIP-848, KIP-1101, KIP-1251.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple

from quorumlog.broker.coordination.core.versioned_messages import (
    VERSION_BYTES,
    decode_versioned,
    encode_versioned,
    version_of,
)
from quorumlog.broker.groups.core.consumer.partitions import (
    Partitions,
    TopicIdPartition,
    partitions_of,
)
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.message import ZERO_UUID, Message, Struct, wire

VALUE_VERSION: Final = 0


class RecordKind(IntEnum):
    """The kind of a record: the version of its key."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET = 6
    TARGET_MEMBER = 7
    CURRENT_ASSIGNMENT = 8
    REGULAR_EXPRESSION = 16


# --- Values. Never changed after they are created. ---


class _Value(Message):
    __slots__ = ()
    VERSIONS = range(1)
    FLEXIBLE_SINCE = 0


class GroupValue(_Value):
    """A ConsumerGroupMetadataValue. `metadata_hash`: of the topics when the epoch began."""

    epoch: int = wire("int32", default=0)
    metadata_hash: int = wire("int64", default=0, tag=0)


class StoredRacks(Struct):
    """The racks of the replicas of one partition."""

    partition: int = wire("int32", default=0)
    racks: list[str] = wire(["string"], default_factory=list)


class StoredTopic(Struct):
    """A topic, as Kafka 4.0 wrote it."""

    topic_id: bytes = wire("uuid", default=ZERO_UUID)
    topic_name: str = wire("string", default="")
    partition_count: int = wire("int32", default=0)
    partition_racks: list[StoredRacks] = wire([StoredRacks], default_factory=list)


class PartitionMetadataValue(_Value):
    """A ConsumerGroupPartitionMetadataValue: read, so that it can be deleted; never written."""

    topics: list[StoredTopic] = wire([StoredTopic], default_factory=list)


class ClassicProtocol(Struct):
    """A protocol that a classic member supports, and its metadata for it."""

    name: str = wire("string", default="")
    metadata: bytes = wire("bytes", default=b"")


class ClassicMemberMetadata(Struct):
    """The part of a MemberValue for a member of the classic protocol."""

    session_timeout_ms: int = wire("int32", default=0)
    supported_protocols: list[ClassicProtocol] = wire([ClassicProtocol], default_factory=list)


class MemberValue(_Value):
    """A ConsumerGroupMemberMetadataValue: the member and its subscription."""

    instance_id: str | None = wire("string", default=None, nullable="0+")
    rack_id: str | None = wire("string", default=None, nullable="0+")
    client_id: str = wire("string", default="")
    client_host: str = wire("string", default="")
    subscribed_topic_names: list[str] = wire(["string"], default_factory=list)  # sorted
    subscribed_topic_regex: str | None = wire("string", default=None, nullable="0+")
    rebalance_timeout_ms: int = wire("int32", default=-1)
    server_assignor: str | None = wire("string", default=None, nullable="0+")
    classic: ClassicMemberMetadata | None = wire(
        ClassicMemberMetadata, default=None, nullable="0+", tag=0
    )


class TargetValue(_Value):
    """A ConsumerGroupTargetAssignmentMetadataValue: the group epoch of the target."""

    assignment_epoch: int = wire("int32", default=0)


class StoredPartitions(Struct):
    """Partitions of one topic."""

    topic_id: bytes = wire("uuid", default=ZERO_UUID)
    partitions: list[int] = wire(["int32"], default_factory=list)


class AssignedPartitions(Struct):
    """Partitions of one topic that a member owns.

    `assignment_epochs`: the member epoch at which it got each; None: not recorded, as by brokers
    before Kafka 4.3.
    """

    topic_id: bytes = wire("uuid", default=ZERO_UUID)
    partitions: list[int] = wire(["int32"], default_factory=list)
    assignment_epochs: list[int] | None = wire(["int32"], default=None, nullable="0+", tag=0)


class TargetMemberValue(_Value):
    """A ConsumerGroupTargetAssignmentMemberValue."""

    topic_partitions: list[StoredPartitions] = wire([StoredPartitions], default_factory=list)


class CurrentAssignmentValue(_Value):
    """A ConsumerGroupCurrentMemberAssignmentValue; `state` is a MemberState."""

    member_epoch: int = wire("int32", default=0)
    previous_member_epoch: int = wire("int32", default=0)
    state: int = wire("int8", default=0)
    assigned_partitions: list[AssignedPartitions] = wire([AssignedPartitions], default_factory=list)
    partitions_pending_revocation: list[AssignedPartitions] = wire(
        [AssignedPartitions], default_factory=list
    )


class RegularExpressionValue(_Value):
    """A ConsumerGroupRegularExpressionValue: the topics that match, sorted.

    `version`: of the metadata image that was matched; `timestamp_ms`: the time of the match.
    """

    topics: list[str] = wire(["string"], default_factory=list)
    version: int = wire("int64", default=0)
    timestamp_ms: int = wire("int64", default=0)


Value = (
    GroupValue
    | PartitionMetadataValue
    | MemberValue
    | TargetValue
    | TargetMemberValue
    | CurrentAssignmentValue
    | RegularExpressionValue
)
VALUES: Final[Mapping[RecordKind, type[Value]]] = {
    RecordKind.GROUP: GroupValue,
    RecordKind.PARTITION_METADATA: PartitionMetadataValue,
    RecordKind.MEMBER: MemberValue,
    RecordKind.TARGET: TargetValue,
    RecordKind.TARGET_MEMBER: TargetMemberValue,
    RecordKind.CURRENT_ASSIGNMENT: CurrentAssignmentValue,
    RecordKind.REGULAR_EXPRESSION: RegularExpressionValue,
}


# --- Keys ---


class _Key(Message):
    """`name`: a member id, or a regular expression."""

    group_id: str = wire("string", "3+", default="")
    name: str = wire("string", "5+", default="")

    VERSIONS = range(RecordKind.GROUP, RecordKind.REGULAR_EXPRESSION + 1)
    FLEXIBLE_SINCE = RecordKind.REGULAR_EXPRESSION + 1


class _GroupKey(Message):
    group_id: str = wire("string", "3+", default="")

    VERSIONS = range(RecordKind.GROUP, RecordKind.TARGET + 1)
    FLEXIBLE_SINCE = RecordKind.TARGET + 1


OF_THE_GROUP: Final = frozenset(
    {RecordKind.GROUP, RecordKind.PARTITION_METADATA, RecordKind.TARGET}
)


class RecordKey(NamedTuple):
    """The subject of a record; `name`: a member id or a regular expression, or "" for the group."""

    kind: RecordKind
    group_id: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRecord:
    """A record of a consumer group. `value` None: a tombstone."""

    subject: RecordKey
    value: Value | None

    @property
    def group_id(self) -> str:
        """The group of the record."""
        return self.subject.group_id


def encode(record: ConsumerGroupRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    kind, group_id, name = record.subject
    if kind in OF_THE_GROUP:
        key = encode_versioned(kind, _GroupKey(group_id=group_id))
    else:
        key = encode_versioned(kind, _Key(group_id=group_id, name=name))
    value = record.value
    return key, None if value is None else encode_versioned(VALUE_VERSION, value)


def decode(key: bytes, value: bytes | None) -> ConsumerGroupRecord | None:
    """Return the record, or None if its key is of an unknown kind. Raises MalformedFrame."""
    version = version_of(key)
    if len(key) < VERSION_BYTES or version not in VALUES:
        return None
    kind = RecordKind(version)
    found: Value | None = None
    if value is not None:
        found = decode_versioned(VALUES[kind], value)
    if kind in OF_THE_GROUP:
        subject = RecordKey(kind, decode_versioned(_GroupKey, key).group_id)
    else:
        named = decode_versioned(_Key, key)
        subject = RecordKey(kind, named.group_id, named.name)
    return ConsumerGroupRecord(subject=subject, value=found)


def estimated_size(record: ConsumerGroupRecord) -> int:
    """Return the estimated size of the record in bytes; partitions are most of it."""
    match record.value:
        case TargetMemberValue(topic_partitions=stored):
            return 100 + sum(24 + 4 * len(one.partitions) for one in stored)
        case CurrentAssignmentValue() as value:
            owned = value.assigned_partitions + value.partitions_pending_revocation
            return 100 + sum(30 + 8 * len(one.partitions) for one in owned)
        case _:
            return 100


def to_stored(partitions: Partitions) -> list[StoredPartitions]:
    """Return the partitions by topic, in order."""
    return [
        StoredPartitions(topic_id=topic_id, partitions=indexes)
        for topic_id, indexes in _by_topic(partitions).items()
    ]


def to_assigned(
    partitions: Partitions, assigned_at: Mapping[TopicIdPartition, int]
) -> list[AssignedPartitions]:
    """Return the partitions by topic, in order, each with the member epoch of its assignment."""
    return [
        AssignedPartitions(
            topic_id=topic_id,
            partitions=indexes,
            assignment_epochs=[assigned_at[one] for one in partitions_of(topic_id, indexes)],
        )
        for topic_id, indexes in _by_topic(partitions).items()
    ]


def _by_topic(partitions: Partitions) -> dict[TopicId, list[int]]:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(partition)
    return by_topic


def from_stored(stored: Sequence[StoredPartitions | AssignedPartitions]) -> Partitions:
    """Return the partitions of all topics."""
    return frozenset(
        chain.from_iterable(partitions_of(TopicId(one.topic_id), one.partitions) for one in stored)
    )


def assignment_epochs_of(
    stored: Sequence[AssignedPartitions], default: int
) -> dict[TopicIdPartition, int]:
    """Return the epoch at which each partition was assigned; `default` where none is recorded."""
    found: dict[TopicIdPartition, int] = {}
    for one in stored:
        epochs = one.assignment_epochs
        if epochs is None or len(epochs) != len(one.partitions):
            epochs = [default] * len(one.partitions)
        partitions = partitions_of(TopicId(one.topic_id), one.partitions)
        found.update(zip(partitions, epochs, strict=True))
    return found

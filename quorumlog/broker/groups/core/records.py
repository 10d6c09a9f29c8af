"""The records of `__consumer_offsets`, in Kafka's own format.

Written: OffsetCommitKey 1 with value 4 (3 without a topic id), GroupMetadataKey 2 with value 3,
each behind its version as an int16; an empty value (None) is a tombstone. Read: the same keys (and
offset key 0), values 0 to 4. `consumer/records.py` has the keys of consumer groups. Keys of group
types that are not served here are skipped. Fields that a newer version appends are ignored.
Source: the schemas of Kafka's group coordinator.
"""

from dataclasses import dataclass
from typing import Final, assert_never

from quorumlog.broker.coordination.core.versioned_messages import (
    decode_versioned,
    encode_versioned,
    version_of,
)
from quorumlog.broker.groups.core.consumer import records as consumer_records
from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord, RecordKey
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.message import Message, Struct, wire

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
VALUE_VERSION: Final = 3  # of written values without a topic id
WITH_TOPIC_ID: Final = 4  # of written offsets with a topic id
NAME_BYTES_MAX: Final = 32_767  # of any string in a record


class StoredMember(Struct):
    """A member, as committed with its generation."""

    member_id: str = wire("string", default="")
    group_instance_id: str | None = wire("string", "3+", default=None, nullable="3+")
    client_id: str = wire("string", default="")
    client_host: str = wire("string", default="")
    rebalance_timeout_ms: int = wire("int32", "1+", default=-1)
    session_timeout_ms: int = wire("int32", default=-1)
    subscription: bytes = wire("bytes", default=b"")
    assignment: bytes = wire("bytes", default=b"")


class StoredGroup(Message):
    """A generation, as committed: Stable if it has members, Empty if not. A GroupMetadataValue."""

    protocol_type: str = wire("string", default="")
    generation_id: int = wire("int32", default=0)
    protocol_name: str | None = wire("string", default=None, nullable="0+")
    leader: str | None = wire("string", default=None, nullable="0+")
    state_since_ms: int = wire("int64", "2+", default=-1)
    members: list[StoredMember] = wire([StoredMember], default_factory=list)

    VERSIONS = range(5)
    FLEXIBLE_SINCE = 4


class _OffsetKey(Message):
    group_id: str = wire("string", default="")
    topic: str = wire("string", default="")
    partition: int = wire("int32", default=-1)

    VERSIONS = range(OFFSET_KEY_VERSION + 1)
    FLEXIBLE_SINCE = OFFSET_KEY_VERSION + 1


class _GroupKey(Message):
    group_id: str = wire("string", "2+", default="")

    VERSIONS = range(GROUP_KEY_VERSION, GROUP_KEY_VERSION + 1)
    FLEXIBLE_SINCE = GROUP_KEY_VERSION + 1


Key = tuple[str, TopicPartition | None] | RecordKey
"""The subject of a record: a group's offset in a partition, or (None) the generation of a classic
group; a RecordKey is the subject of a consumer group's record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """The group's offset in one partition; None: a tombstone."""

    group_id: str
    topic_partition: TopicPartition
    committed: CommittedOffset | None

    @property
    def subject(self) -> Key:
        """The key: a later record of the same subject replaces this record."""
        return self.group_id, self.topic_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The group's newest generation; None: a tombstone."""

    group_id: str
    stored: StoredGroup | None

    @property
    def subject(self) -> Key:
        """The key: a later record of the same subject replaces this record."""
        return self.group_id, None


LogRecord = OffsetRecord | GroupRecord | ConsumerGroupRecord


def is_tombstone(record: LogRecord) -> bool:
    """Whether the record deletes its key."""
    match record:
        case OffsetRecord(committed=value) | GroupRecord(stored=value):
            return value is None
        case ConsumerGroupRecord(value=value):
            return value is None
        case _:
            assert_never(record)


def encode(record: LogRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    if isinstance(record, ConsumerGroupRecord):
        return consumer_records.encode(record)
    if isinstance(record, OffsetRecord):
        topic, partition = record.topic_partition
        key = _OffsetKey(group_id=record.group_id, topic=topic, partition=partition)
        return encode_versioned(OFFSET_KEY_VERSION, key), _value(record.committed)
    group_key = _GroupKey(group_id=record.group_id)
    return encode_versioned(GROUP_KEY_VERSION, group_key), _value(record.stored)


def _value(value: CommittedOffset | StoredGroup | None) -> bytes | None:
    if value is None:
        return None
    has_id = isinstance(value, CommittedOffset) and value.topic_id != ZERO_TOPIC_ID
    return encode_versioned(WITH_TOPIC_ID if has_id else VALUE_VERSION, value)


def decode(key: bytes, value: bytes | None) -> LogRecord | None:
    """Return the record, or None if its key is of an unknown kind. Raises MalformedFrame."""
    key_version = version_of(key)
    if key_version in _OffsetKey.VERSIONS:
        found = decode_versioned(_OffsetKey, key)
        where = TopicPartition(found.topic, found.partition)
        committed = None if value is None else decode_versioned(CommittedOffset, value)
        return OffsetRecord(group_id=found.group_id, topic_partition=where, committed=committed)
    if key_version not in _GroupKey.VERSIONS:
        return consumer_records.decode(key, value)
    stored = None if value is None else decode_versioned(StoredGroup, value)
    if stored is not None and version_of(value or b"") == 0:
        for member in stored.members:  # version 0 has only the session timeout
            member.rebalance_timeout_ms = member.session_timeout_ms
    return GroupRecord(group_id=decode_versioned(_GroupKey, key).group_id, stored=stored)

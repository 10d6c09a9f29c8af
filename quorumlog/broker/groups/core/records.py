"""The records of `__consumer_offsets`, in Kafka's own format.

Written: OffsetCommitKey 1 with value 3, GroupMetadataKey 2 with value 3; all are fixed structs of
big-endian numbers and strings with a 16-bit length, and an empty value (None) is a tombstone.
Read: the same keys (and offset key 0), values 0 to 3. Other keys are of kinds of groups that are
not served here: skipped. Source: the schemas of Kafka's group coordinator.
"""

import struct
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.wire.codec.identifiers import TopicPartition

OFFSET_KEY_VERSIONS: Final = (0, 1)
GROUP_KEY_VERSION: Final = 2
VALUE_VERSION: Final = 3


class MalformedRecord(ValueError):
    """A key or value that is not in Kafka's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member, as committed with its generation."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A generation, as committed: Stable if it has members, Empty if not."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[StoredMember, ...]


Key = tuple[str, TopicPartition | None]
"""The subject of a record: a group's offset in a partition, or (None) the group's generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """The group's offset in one partition; None: it is deleted."""

    group_id: str
    topic_partition: TopicPartition
    committed: CommittedOffset | None

    @property
    def subject(self) -> Key:
        """What a later record of the same subject replaces."""
        return self.group_id, self.topic_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The group's newest generation; None: the group is gone."""

    group_id: str
    stored: StoredGroup | None

    @property
    def subject(self) -> Key:
        """What a later record of the same subject replaces."""
        return self.group_id, None


LogRecord = OffsetRecord | GroupRecord


def _string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def _data(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def encode(record: LogRecord) -> tuple[bytes, bytes | None]:
    """Return the record's key and value."""
    if isinstance(record, OffsetRecord):
        topic, partition = record.topic_partition
        key = struct.pack(">h", OFFSET_KEY_VERSIONS[-1])
        key += _string(record.group_id) + _string(topic) + struct.pack(">i", partition)
        committed = record.committed
        if committed is None:
            return key, None
        value = struct.pack(">hqi", VALUE_VERSION, committed.offset, committed.leader_epoch)
        value += _string(committed.metadata) + struct.pack(">q", committed.commit_timestamp_ms)
        return key, value
    key = struct.pack(">h", GROUP_KEY_VERSION) + _string(record.group_id)
    return key, None if record.stored is None else _group_value(record.stored)


def _group_value(stored: StoredGroup) -> bytes:
    parts = [
        struct.pack(">h", VALUE_VERSION),
        _string(stored.protocol_type),
        struct.pack(">i", stored.generation_id),
        _string(stored.protocol_name),
        _string(stored.leader),
        struct.pack(">qi", stored.state_since_ms, len(stored.members)),
    ]
    for member in stored.members:
        parts += (
            _string(member.member_id),
            _string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _data(member.subscription),
            _data(member.assignment),
        )
    return b"".join(parts)


class _Reader:
    """Takes one field after the other. Raises MalformedRecord where the bytes end early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def nullable_string(self) -> str | None:
        size = self.number(2)
        try:
            return None if size < 0 else self._take(size).decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(str(error)) from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedRecord("null where a string must be")
        return text

    def data(self) -> bytes:
        return self._take(self.number(4))

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise MalformedRecord(f"{size} bytes wanted at {self._position} of {len(self._data)}")
        taken = self._data[self._position : end]
        self._position = end
        return taken


def decode(key: bytes, value: bytes | None) -> LogRecord | None:
    """Return the record, or None if its key is of another kind. Raises MalformedRecord."""
    reader = _Reader(key)
    key_version = reader.number(2)
    if key_version in OFFSET_KEY_VERSIONS:
        group_id, topic, partition = reader.string(), reader.string(), reader.number(4)
        committed = None if value is None else _read_offset(_Reader(value))
        where = TopicPartition(topic, partition)
        return OffsetRecord(group_id=group_id, topic_partition=where, committed=committed)
    if key_version == GROUP_KEY_VERSION:
        stored = None if value is None else _read_group(_Reader(value))
        return GroupRecord(group_id=reader.string(), stored=stored)
    return None


def _read_version(reader: _Reader) -> int:
    version = reader.number(2)
    if not 0 <= version <= VALUE_VERSION:
        raise MalformedRecord(f"value version {version}; known: 0 to {VALUE_VERSION}")
    return version


def _read_offset(reader: _Reader) -> CommittedOffset:
    version = _read_version(reader)
    return CommittedOffset(
        offset=reader.number(8),
        leader_epoch=reader.number(4) if version >= 3 else -1,
        metadata=reader.string(),
        commit_timestamp_ms=reader.number(8),
    )


def _read_group(reader: _Reader) -> StoredGroup:
    version = _read_version(reader)
    return StoredGroup(
        protocol_type=reader.string(),
        generation_id=reader.number(4),
        protocol_name=reader.nullable_string(),
        leader=reader.nullable_string(),
        state_since_ms=reader.number(8) if version >= 2 else -1,
        members=tuple(_read_member(reader, version) for _ in range(reader.number(4))),
    )


def _read_member(reader: _Reader, version: int) -> StoredMember:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.number(4) if version >= 1 else -1
    session_timeout_ms = reader.number(4)
    return StoredMember(
        member_id=member_id,
        group_instance_id=group_instance_id,
        client_id=client_id,
        client_host=client_host,
        # Version 0 knew one timeout only.
        rebalance_timeout_ms=rebalance_timeout_ms if version >= 1 else session_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.data(),
        assignment=reader.data(),
    )

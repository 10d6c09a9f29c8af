"""Records that the cluster writes, by name: control, metadata and coordinator records."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import IntEnum
from typing import Any, Final

from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord, RecordKind
from quorumlog.broker.groups.core.records import GroupRecord, OffsetRecord, StoredGroup, decode
from quorumlog.broker.transactions.core.records import decode as decode_of_transaction
from quorumlog.cli.dump.contents import Item
from quorumlog.cli.formats import text_or_base64
from quorumlog.client.core.group_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)
from quorumlog.cluster.security import HIDDEN, may_be_secret
from quorumlog.metadata_quorum.cbor_values import to_plain
from quorumlog.metadata_quorum.image.records import (
    RECORD_TYPES,
    MalformedRecord,
    NewerRecord,
    decode_record,
)
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Message, Struct
from quorumlog.wire.codec.messages.end_txn_marker import EndTxnMarker
from quorumlog.wire.codec.messages.k_raft_version_record import KRaftVersionRecord
from quorumlog.wire.codec.messages.leader_change_message import LeaderChangeMessage
from quorumlog.wire.codec.messages.snapshot_footer_record import SnapshotFooterRecord
from quorumlog.wire.codec.messages.snapshot_header_record import SnapshotHeaderRecord
from quorumlog.wire.codec.messages.voters_record import VotersRecord
from quorumlog.wire.codec.records import Record
from quorumlog.wire.codec.schemas import decode_message

Decode = Callable[[Record], Item]
"""Returns {"type": name, ...fields}. Raises Undecodable."""

_INT16_BYTES: Final = 2
_UUID_BYTES: Final = 16
_KAFKA_FRAME: Final = 1  # the first byte of Apache Kafka's metadata records; no CBOR list has it


class Undecodable(ValueError):
    """A record that does not belong in its file."""


class _Control(IntEnum):
    """The types of control records: int16, behind an int16 of version, in the key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_CONTROL_VALUES: Final[dict[int, type[Message]]] = {
    _Control.LEADER_CHANGE: LeaderChangeMessage,
    _Control.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    _Control.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    _Control.KRAFT_VERSION: KRaftVersionRecord,
    _Control.KRAFT_VOTERS: VotersRecord,
}


def decode_control(record: Record) -> Item:
    """Describe a marker of a transaction, or a record of the quorum (KIP-98, KIP-595, KIP-853)."""
    key, value = record.key or b"", record.value or b""
    if len(key) < 2 * _INT16_BYTES or len(value) < _INT16_BYTES:
        raise Undecodable(f"a control record with {len(key)} + {len(value)} bytes")
    number, version = _int16(key[_INT16_BYTES:]), _int16(value)
    if number not in set(_Control):
        return {"type": f"control record {number}"}
    kind = _CONTROL_VALUES.get(number)
    if kind is None:  # a transaction marker: the version stands before the message
        kind, value = EndTxnMarker, value[_INT16_BYTES:]
    try:
        known = min(max(version, 0), max(kind.VERSIONS))  # newer versions only append fields
        return {"type": _Control(number).name} | _plain(decode_message(kind, known, value))
    except MalformedFrame as error:
        raise Undecodable(f"{_Control(number).name}: {error}") from error


def decode_metadata(record: Record) -> Item:
    """Describe a metadata record; of Apache Kafka's records, only type and version."""
    value = record.value or b""
    if len(value) > _INT16_BYTES and value[0] == _KAFKA_FRAME:
        kind = RECORD_TYPES.get(value[1])
        name = f"metadata record {value[1]}" if kind is None else kind.__name__
        return {"type": f"Apache Kafka's {name}", "version": value[2]}
    try:
        found = decode_record(value)
    except (MalformedRecord, NewerRecord) as error:
        raise Undecodable(str(error)) from error
    return {"type": type(found).__name__, **_fields(found)}


def _fields(record: object) -> Item:
    """Return the fields of a metadata record; secret ones are hidden.

    A field without a `repr` is secret, such as the keys of SCRAM; so is the value of a setting that
    has the name of a password or of a key.
    """
    plain: dict[str, Any] = dict(to_plain(record))  # type: ignore[call-overload]  # of a dataclass
    for field in fields(record):  # type: ignore[arg-type]  # as above
        name, value = field.name, getattr(record, field.name)
        if not field.repr:
            plain[name] = HIDDEN
        elif is_dataclass(value):
            plain[name] = _fields(value)
    if may_be_secret({str(plain.get("name")): ""}) and "value" in plain:
        plain["value"] = HIDDEN
    return {name: _scalar(name, value) for name, value in plain.items()}


_CONSUMER_GROUP_RECORDS: Final[Mapping[RecordKind, str]] = {  # as Kafka's schemas name them
    RecordKind.GROUP: "ConsumerGroupMetadata",
    RecordKind.PARTITION_METADATA: "ConsumerGroupPartitionMetadata",
    RecordKind.MEMBER: "ConsumerGroupMemberMetadata",
    RecordKind.TARGET: "ConsumerGroupTargetAssignmentMetadata",
    RecordKind.TARGET_MEMBER: "ConsumerGroupTargetAssignmentMember",
    RecordKind.CURRENT_ASSIGNMENT: "ConsumerGroupCurrentMemberAssignment",
    RecordKind.REGULAR_EXPRESSION: "ConsumerGroupRegularExpression",
}


def decode_group(record: Record) -> Item:
    """Describe a record of `__consumer_offsets`: a committed offset, or a group's state."""
    key = record.key or b""
    try:
        found = decode(key, record.value)
    except MalformedFrame as error:
        raise Undecodable(str(error)) from error
    match found:
        case None:
            version = _int16(key)
            return {"type": f"group record {version}", "key": text_or_base64(key)}
        case OffsetRecord():
            topic, partition = found.topic_partition
            committed = None if found.committed is None else _plain(found.committed)
            at = {"group": found.group_id, "topic": topic, "partition": partition}
            return {"type": "OffsetCommit"} | at | {"committed": committed}
        case GroupRecord():
            stored = None if found.stored is None else _group(found.stored)
            return {"type": "GroupMetadata", "group": found.group_id, "stored": stored}
        case ConsumerGroupRecord():
            kind, group_id, name = found.subject
            value = None if found.value is None else _plain(found.value)
            of = {"group": group_id} | ({"name": name} if name else {})
            return {"type": _CONSUMER_GROUP_RECORDS[kind]} | of | {"value": value}


def decode_transaction(record: Record) -> Item:
    """Describe a record of `__transaction_state`: the state of a transactional id."""
    try:
        found = decode_of_transaction(record.key or b"", record.value)
    except MalformedFrame as error:
        raise Undecodable(str(error)) from error
    metadata = found.metadata
    committed = None
    if metadata is not None:
        committed = asdict(metadata)
        del committed["last_producer_epoch"]  # no record has this field
        committed |= {"state": metadata.state.value, "partitions": _names(metadata.partitions)}
    return {"type": "TransactionLog", "id": found.transactional_id, "committed": committed}


def _group(stored: StoredGroup) -> Item:
    """Describe a generation; consumers' subscriptions and assignments are decoded, too."""
    plain = _plain(stored)
    if stored.protocol_type != PROTOCOL_TYPE:
        return plain
    for shown, member in zip(plain["members"], stored.members, strict=True):
        try:
            subscription = decode_subscription(member.subscription, member.group_instance_id)
            assignment = decode_assignment(member.assignment)
        except MalformedFrame:
            continue  # the coordinator does not read these fields: they may hold any bytes
        shown["subscription"] = {
            "topics": list(subscription.topics),
            "owned": _names(subscription.owned),
        }
        shown["assignment"] = _names(assignment)
    return plain


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [str(one) for one in partitions]


def _int16(data: bytes) -> int:
    return int.from_bytes(data[:_INT16_BYTES], "big", signed=True)


def _plain(struct: Struct) -> Item:
    return {field.name: _value(getattr(struct, field.name), field.type) for field in struct.FIELDS}


def _value(value: object, kind: object) -> object:
    if isinstance(value, Struct):
        return _plain(value)
    if isinstance(value, list):
        return [_value(one, None) for one in value]
    if not isinstance(value, bytes | bytearray | memoryview):
        return value
    if kind != "uuid":
        return text_or_base64(bytes(value))
    return uuid_to_text(bytes(value)) if any(value) else None


def _scalar(name: str, value: object) -> object:
    """Return a field of a metadata record; topic ids have Kafka's text form."""
    if not isinstance(value, bytes):
        return value
    is_uuid = name.endswith("_id") and len(value) == _UUID_BYTES
    return uuid_to_text(value) if is_uuid else text_or_base64(value)

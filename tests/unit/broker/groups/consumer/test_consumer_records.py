"""The bytes of the records of consumer groups, field by field as in Kafka's schemas."""

from pathlib import Path

import pytest

from quorumlog.broker.groups.core.consumer.partitions import TopicIdPartition
from quorumlog.broker.groups.core.consumer.reconciliation import CurrentAssignment
from quorumlog.broker.groups.core.consumer.records import (
    AssignedPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    MemberValue,
    PartitionMetadataValue,
    RecordKey,
    RecordKind,
    RegularExpressionValue,
    StoredPartitions,
    StoredRacks,
    StoredTopic,
    TargetMemberValue,
    TargetValue,
    Value,
    decode,
    encode,
    from_stored,
    to_stored,
)
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.records import decode_batches

ID = bytes(range(16))
ID_HEX = ID.hex()
RECORDS: dict[str, tuple[RecordKind, str, Value, str, str]] = {
    # name: kind, name in the key, value, key bytes, value bytes (each behind its version)
    "group": (
        RecordKind.GROUP,
        "",
        GroupValue(epoch=7, metadata_hash=-2),
        "0003 0001 67",
        "0000 00000007 01 00 08 fffffffffffffffe",  # one tagged field: tag 0, 8 bytes
    ),
    "group without topics": (
        RecordKind.GROUP,
        "",
        GroupValue(epoch=7),
        "0003 0001 67",
        "0000 00000007 00",
    ),
    "partition metadata": (
        RecordKind.PARTITION_METADATA,
        "",
        PartitionMetadataValue(
            topics=[
                StoredTopic(
                    topic_id=ID,
                    topic_name="t",
                    partition_count=3,
                    partition_racks=[StoredRacks(partition=1, racks=["r"])],
                )
            ]
        ),
        "0004 0001 67",
        f"0000 02 {ID_HEX} 02 74 00000003 02 00000001 02 02 72 00 00 00",
    ),
    "member": (
        RecordKind.MEMBER,
        "m",
        MemberValue(
            instance_id="i",
            rack_id=None,
            client_id="c",
            client_host="h",
            subscribed_topic_names=["t", "u"],
            subscribed_topic_regex="x.",
            rebalance_timeout_ms=5000,
            server_assignor="range",
        ),
        "0005 0001 67 0001 6d",
        "0000 02 69 00 02 63 02 68 03 02 74 02 75 03 782e 00001388 06 72616e6765 01 00 01 00",
    ),
    "classic member": (
        RecordKind.MEMBER,
        "m",
        MemberValue(
            classic=ClassicMemberMetadata(
                session_timeout_ms=9,
                supported_protocols=[ClassicProtocol(name="r", metadata=b"\x05")],
            )
        ),
        "0005 0001 67 0001 6d",
        # tag 0, 12 bytes: present, the timeout, one protocol
        "0000 00 00 01 01 01 00 ffffffff 00 01 00 0c 01 00000009 02 02 72 02 05 00 00",
    ),
    "target": (
        RecordKind.TARGET,
        "",
        TargetValue(assignment_epoch=7),
        "0006 0001 67",
        "0000 00000007 00",
    ),
    "target of a member": (
        RecordKind.TARGET_MEMBER,
        "m",
        TargetMemberValue(topic_partitions=[StoredPartitions(topic_id=ID, partitions=[0, 2])]),
        "0007 0001 67 0001 6d",
        f"0000 02 {ID_HEX} 03 00000000 00000002 00 00",
    ),
    "current assignment": (
        RecordKind.CURRENT_ASSIGNMENT,
        "m",
        CurrentAssignmentValue(
            member_epoch=6,
            previous_member_epoch=5,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned_partitions=[AssignedPartitions(topic_id=ID, partitions=[1])],
            partitions_pending_revocation=[
                AssignedPartitions(topic_id=ID, partitions=[2], assignment_epochs=[4])
            ],
        ),
        "0008 0001 67 0001 6d",
        # the epochs of KIP-1251: tag 0, 5 bytes: one number; null is left out
        f"0000 00000006 00000005 01 02 {ID_HEX} 02 00000001 00 "
        f"02 {ID_HEX} 02 00000002 01 00 05 02 00000004 00",
    ),
    "regular expression": (
        RecordKind.REGULAR_EXPRESSION,
        "x.",
        RegularExpressionValue(topics=["xa"], version=3, timestamp_ms=1000),
        "0010 0001 67 0002 782e",
        "0000 02 03 7861 0000000000000003 00000000000003e8 00",
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_kafkas_bytes(name: str) -> None:
    kind, subject, value, key_hex, value_hex = RECORDS[name]
    key, data = bytes.fromhex(key_hex), bytes.fromhex(value_hex)
    record = ConsumerGroupRecord(subject=RecordKey(kind, "g", subject), value=value)
    assert encode(record) == (key, data)
    assert decode(key, data) == record
    gone = ConsumerGroupRecord(subject=RecordKey(kind, "g", subject), value=None)
    assert encode(gone) == (key, None)
    assert decode(key, None) == gone


@pytest.mark.parametrize("name", RECORDS)
def test_bytes_that_end_early_are_refused_wherever_they_end(name: str) -> None:
    key, data = (bytes.fromhex(text) for text in RECORDS[name][3:])
    for end in range(len(data)):
        with pytest.raises(MalformedFrame):
            decode(key, data[:end])
    for end in range(2, len(key)):
        with pytest.raises(MalformedFrame):
            decode(key[:end], data)


@pytest.mark.parametrize("name", RECORDS)
def test_a_value_of_a_newer_version_is_refused(name: str) -> None:
    key, data = (bytes.fromhex(text) for text in RECORDS[name][3:])
    with pytest.raises(MalformedFrame):
        decode(key, b"\x00\x01" + data[2:])


@pytest.mark.parametrize(
    ("member_epoch", "epochs", "expected"),
    [(6, [4, 5], [4, 5]), (6, None, [6, 6]), (-2, None, [0, 0]), (6, [4], [6, 6])],
    ids=["of Kafka 4.3", "of an older broker", "of a static member that is away", "too few"],
)
def test_partitions_without_an_epoch_were_assigned_at_the_present_one(
    member_epoch: int, epochs: list[int] | None, expected: list[int]
) -> None:
    stored = AssignedPartitions(topic_id=ID, partitions=[1, 7], assignment_epochs=epochs)
    value = CurrentAssignmentValue(member_epoch=member_epoch, assigned_partitions=[stored])
    current = CurrentAssignment.from_value(value)
    places = [TopicIdPartition(TopicId(ID), index) for index in (1, 7)]
    assert [current.assigned_at[one] for one in places] == expected


def test_what_newer_versions_add_as_tagged_fields_is_skipped() -> None:
    """Kafka 4.3 adds the time of the target (KIP-1263)."""
    target = bytes.fromhex("0000 00000007 01 00 08 00000000000003e8")
    found = decode(bytes.fromhex("0006 0001 67"), target)
    assert found is not None
    assert found.value == TargetValue(assignment_epoch=7)


@pytest.mark.parametrize("key", ["0001 0001 67 0001 74 00000000", "0002 0001 67", "0009", "00", ""])
def test_keys_of_other_kinds_are_left_to_others(key: str) -> None:
    assert decode(bytes.fromhex(key), b"\0\0") is None


def test_partitions_are_stored_topic_by_topic_in_order() -> None:
    one, two = TopicId(bytes(16)), TopicId(ID)
    partitions = frozenset(
        {TopicIdPartition(two, 9), TopicIdPartition(one, 3), TopicIdPartition(two, 1)}
    )
    stored = to_stored(partitions)
    assert stored == [
        StoredPartitions(topic_id=one, partitions=[3]),
        StoredPartitions(topic_id=two, partitions=[1, 9]),
    ]
    assert from_stored(stored) == partitions


def test_a_state_of_a_newer_version_is_unknown() -> None:
    assert MemberState(5) is MemberState.UNKNOWN
    assert MemberState(2) is MemberState.UNRELEASED_PARTITIONS


def test_the_records_of_a_group_that_apache_kafka_has_served_are_read() -> None:
    """It always writes whether a member is a classic one; null in a tagged field is a zero."""
    path = Path(__file__).parents[4] / "data/apache_kafka/__consumer_offsets-1" / f"{0:020d}.log"
    pairs = [
        (record.key or b"", record.value)
        for _, records in decode_batches(path.read_bytes())
        for record in records
    ]
    found = [(pair, record) for pair in pairs if (record := decode(*pair)) is not None]
    assert [record.subject.kind for _, record in found] == [
        *(RecordKind.MEMBER, RecordKind.GROUP, RecordKind.TARGET_MEMBER, RecordKind.TARGET),
        *(RecordKind.CURRENT_ASSIGNMENT, RecordKind.CURRENT_ASSIGNMENT),
        *(RecordKind.TARGET_MEMBER, RecordKind.MEMBER, RecordKind.GROUP),
    ]
    (pair, member), (_, group), *_ = found
    assert isinstance(member.value, MemberValue)
    assert member.value.classic is None
    assert member.value.subscribed_topic_names == ["orders"]
    assert isinstance(group.value, GroupValue)
    assert group.value.epoch == 2
    assert encode(member) == pair

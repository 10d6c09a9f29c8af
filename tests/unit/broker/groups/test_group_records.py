"""The bytes of `__consumer_offsets`, field by field as in Kafka's schemas, and Java's hash."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import pytest

from quorumlog.broker.coordination.core import partition_hash
from quorumlog.broker.coordination.core.partition_hash import java_string_hash, partition_for
from quorumlog.broker.groups.core.group import Group, GroupState
from quorumlog.broker.groups.core.records import (
    GroupRecord,
    LogRecord,
    OffsetRecord,
    StoredGroup,
    StoredMember,
    decode,
    encode,
)
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition

OFFSET_KEY = bytes.fromhex("0001 0001 67 0001 74 00000007")  # version, "g", "t", partition
OFFSET_VALUE = bytes.fromhex("0003 0000000000000005 00000002 0001 6d 00000000000003e8")
GROUP_KEY = bytes.fromhex("0002 0001 67")
GROUP_VALUE = bytes.fromhex(
    "0003 0001 63 00000004 0001 72 0001 61 00000000000003e8 00000001"  # type ... timestamp, count
    "0001 61 ffff 0001 78 0001 79 000007d0 000003e8 00000001 01 00000002 0203"  # the member
)
OFFSET = OffsetRecord(
    group_id="g",
    topic_partition=TopicPartition("t", 7),
    committed=CommittedOffset(offset=5, leader_epoch=2, metadata="m", commit_timestamp_ms=1000),
)
GROUP = GroupRecord(
    group_id="g",
    stored=StoredGroup(
        protocol_type="c",
        generation_id=4,
        protocol_name="r",
        leader="a",
        state_since_ms=1000,
        members=[
            StoredMember(
                member_id="a",
                group_instance_id=None,
                client_id="x",
                client_host="y",
                rebalance_timeout_ms=2000,
                session_timeout_ms=1000,
                subscription=b"\x01",
                assignment=b"\x02\x03",
            )
        ],
    ),
)


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (OFFSET, OFFSET_KEY, OFFSET_VALUE),
        (GROUP, GROUP_KEY, GROUP_VALUE),
        (GroupRecord(group_id="g", stored=None), GROUP_KEY, None),
        (replace(OFFSET, committed=None), OFFSET_KEY, None),
    ],
    ids=["offset", "group", "group tombstone", "offset tombstone"],
)
def test_a_record_has_kafkas_bytes(record: LogRecord, key: bytes, value: bytes | None) -> None:
    assert encode(record) == (key, value)
    assert decode(key, value) == record


def test_an_offset_that_names_the_topics_id_is_read_and_written() -> None:
    value = bytes.fromhex(
        "0004 0000000000000005 00000002 02 6d 00000000000003e8"  # as before, with a compact string
        "01 00 10 000102030405060708090a0b0c0d0e0f"  # one tagged field: tag 0, 16 bytes
    )
    found = decode(OFFSET_KEY, value)
    assert isinstance(found, OffsetRecord)
    assert found.committed is not None
    assert found.committed.topic_id == bytes(range(16))
    assert (found.committed.offset, found.committed.metadata) == (5, "m")
    assert encode(found) == (OFFSET_KEY, value)


def test_a_flexible_generation_is_read() -> None:
    value = bytes.fromhex(
        "0004 02 63 00000004 02 72 02 61 00000000000003e8 02"
        "02 61 00 02 78 02 79 000007d0 000003e8 02 01 03 0203 00 00"  # tagged fields: none
    )
    assert decode(GROUP_KEY, value) == GROUP


def test_older_values_are_read() -> None:
    value = bytes.fromhex("0001 0000000000000005 0001 6d 00000000000003e8 00000000000003e9")
    read = decode(OFFSET_KEY, value)
    assert isinstance(read, OffsetRecord)
    assert read.committed == CommittedOffset(offset=5, metadata="m", commit_timestamp_ms=1000)
    value = bytes.fromhex(
        "0000 0001 63 00000004 0001 72 0001 61 00000001"
        "0001 61 0001 78 0001 79 000003e8 00000001 01 00000002 0203"
    )
    group = decode(GROUP_KEY, value)
    assert isinstance(group, GroupRecord)
    assert group.stored is not None
    [member] = group.stored.members
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (1000, 1000)


def test_keys_of_other_kinds_of_groups_are_skipped() -> None:
    assert decode(bytes.fromhex("0011 0001 67"), b"\0\0") is None  # StreamsGroupMetadataKey


@pytest.mark.parametrize("record", [OFFSET, GROUP], ids=["offset", "group"])
def test_bytes_that_end_early_are_refused_wherever_they_end(record: LogRecord) -> None:
    key, value = encode(record)
    assert value is not None
    for end in range(len(value)):
        with pytest.raises(MalformedFrame):
            decode(key, value[:end])
    for end in range(len(key)):
        with pytest.raises(MalformedFrame):
            decode(key[:end], value)


@pytest.mark.parametrize(
    "value",
    ["0004", "0003 0000000000000005 00000002 ffff", "0003 0000000000000005 00000002 0001 ff"],
)
def test_values_that_are_not_kafkas_are_refused(value: str) -> None:
    with pytest.raises(MalformedFrame):
        decode(OFFSET_KEY, bytes.fromhex(value))


@pytest.mark.parametrize(
    ("text", "expected", "partition"),
    [
        ("", 0, 0),
        ("a", 97, 47),
        ("hello", 99162322, 22),
        ("polygenelubricants", -2147483648, 0),  # the one without an absolute value
        ("console-consumer-12345", 158455506, 6),
        ("my-group", -1906497762, 12),
        ("\U0001f600", 1772899, 49),  # a surrogate pair: two code units
        ("Gr\u00fc\u00dfe", 69215351, 1),
        ("\u65e5\u672c\u8a9e", 25921943, 43),
    ],
)
def test_a_group_lives_where_java_says(text: str, expected: int, partition: int) -> None:
    """Printed by a JVM: String.hashCode, and Kafka's Utils.abs of it modulo 50."""
    assert java_string_hash(text) == expected
    assert partition_for(text, 50) == partition


def test_the_partitions_of_long_ids_are_not_kept() -> None:
    before = partition_hash._cached.cache_info().currsize
    text = "g" * 1000
    assert partition_for(text, 50) == abs(java_string_hash(text)) % 50
    assert partition_hash._cached.cache_info().currsize == before


LEGAL = {
    ("EMPTY", "PREPARING_REBALANCE"),
    ("EMPTY", "DEAD"),
    ("PREPARING_REBALANCE", "COMPLETING_REBALANCE"),
    ("PREPARING_REBALANCE", "EMPTY"),
    ("COMPLETING_REBALANCE", "STABLE"),
    ("COMPLETING_REBALANCE", "PREPARING_REBALANCE"),
    ("STABLE", "PREPARING_REBALANCE"),
}


@pytest.mark.parametrize(("source", "target"), list(product(GroupState, repeat=2)))
def test_every_pair_of_states(source: GroupState, target: GroupState) -> None:
    group = Group("g")
    group.state = source
    is_legal = (source.name, target.name) in LEGAL  # written a second time here, on purpose
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change"):
        group.transition(target, 5)
    assert group.state is (target if is_legal else source)

"""Metadata records as bytes: versions, unknown fields, and bytes that are no record."""

from dataclasses import MISSING, fields
from typing import Any

import cbor2
import pytest

from quorumlog.metadata_quorum.cbor_values import MalformedValue, from_plain, to_plain
from quorumlog.metadata_quorum.image import records
from quorumlog.metadata_quorum.image.records import (
    MalformedRecord,
    NewerRecord,
    decode_record,
    encode_record,
)
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicId

TOPIC_ID = TopicId(bytes(range(16)))
CHANGE = records.PartitionChange(
    topic_id=TOPIC_ID, partition_id=PartitionIndex(3), isr=(BrokerId(1),), elr=()
)


def test_a_record_is_its_type_its_version_and_its_fields() -> None:
    assert cbor2.loads(encode_record(CHANGE)) == [
        5,
        0,
        {"topic_id": TOPIC_ID, "partition_id": 3, "isr": [1], "elr": []},
    ]
    assert decode_record(encode_record(CHANGE)) == CHANGE


def test_a_field_at_its_default_is_not_written() -> None:
    one = (BrokerId(1),)
    new = records.Partition(
        topic_id=TOPIC_ID, partition_id=PartitionIndex(3), replicas=one, isr=one, leader=one[0]
    )
    fields = {"topic_id": TOPIC_ID, "partition_id": 3, "replicas": [1], "isr": [1], "leader": 1}
    assert cbor2.loads(encode_record(new)) == [3, 0, fields]
    assert decode_record(encode_record(new)) == new


def test_the_defaults_of_records_are_those_that_written_logs_mean() -> None:
    """A default that changes would change what is in every log: see `encode_record`."""
    defaults = {
        kind.__name__: {
            field.name: field.default for field in fields(kind) if field.default is not MISSING
        }
        for kind in records.RECORD_TYPES.values()
    }
    nothing = {name: found for name, found in defaults.items() if {*found.values()} <= {None}}
    assert {name: found for name, found in defaults.items() if name not in nothing} == {
        "RegisterBroker": {
            **dict.fromkeys(("rack", "directory_id", "boot_id", "broker_epoch", "log_dirs")),
            "min_insync_replicas": 1,
            "fenced": True,
            "in_controlled_shutdown": False,
        },
        "Partition": {
            "leader_epoch": 0,
            "partition_epoch": 0,
            **dict.fromkeys(("elr", "adding_replicas", "removing_replicas"), ()),
            "last_known_leader": -1,
            "is_recovering": False,
            "directories": None,
            "last_known_elr": (),
        },
        "FeatureLevel": {"is_automatic": False},
    }


def test_the_fields_of_a_newer_version_are_skipped() -> None:
    value = cbor2.dumps([9, 1, {"topic_id": TOPIC_ID, "reason": "tidy"}])
    assert decode_record(value) == records.RemoveTopic(topic_id=TOPIC_ID)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "not CBOR"),
        (b"\xff", "not CBOR"),
        (b"\x9f" * 5000, "not CBOR"),
        (cbor2.dumps({"a": 1}), "expected"),
        (cbor2.dumps(["5", 0, {}]), "type '5' is no number"),
        (cbor2.dumps([[], 0, {}]), "type \\[\\] is no number"),
        (cbor2.dumps([9, 0, []]), "RemoveTopic: expected a map"),
        (cbor2.dumps([9, 0, {}]), "RemoveTopic.topic_id: expected bytes, got NoneType"),
        (cbor2.dumps([9, 0, {"topic_id": 5}]), "RemoveTopic.topic_id: expected bytes, got int"),
        (
            cbor2.dumps([5, 0, {"topic_id": TOPIC_ID, "partition_id": True}]),
            "partition_id: expected int, got bool",
        ),
    ],
)
def test_bytes_that_are_no_record_are_an_error_that_says_why(value: bytes, message: str) -> None:
    with pytest.raises(MalformedRecord, match=message):
        decode_record(value)


@pytest.mark.parametrize("value", [{"a": 1, "b": [1]}, "text", 5, None])
def test_plain_values_of_another_shape_are_refused(value: Any) -> None:
    with pytest.raises(MalformedValue):
        from_plain(records.Topic, value)
    with pytest.raises(TypeError, match="no plain form"):
        to_plain(object())


def test_a_record_of_a_newer_release_is_no_damage() -> None:
    with pytest.raises(NewerRecord, match="it has records of type 99"):
        decode_record(cbor2.dumps([99, 0, {}]))

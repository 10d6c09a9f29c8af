"""Metadata records as bytes: versions, unknown fields, and bytes that are no record."""

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

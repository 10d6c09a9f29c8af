"""Records of any client, as a history holds them."""

from collections import namedtuple
from typing import Any

import pytest

from quorumlog.client.records import ConsumerRecord, TopicPartition
from quorumlog.testing.recorded_values import RecordedValues, key_of, read_records
from quorumlog.testing.topics import FreshTopic, topic_name

Theirs = namedtuple("Theirs", "topic partition offset value")


class Confluent:
    """A message of confluent-kafka: methods, no attributes."""

    def __init__(self, offset: int, value: bytes) -> None:
        self._offset, self._value = offset, value

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value


def test_one_value_in_three_types_is_one_number() -> None:
    values = RecordedValues()
    assert {values.number(7), values.number("7"), values.number(b"7")} == {7}
    assert values.number("seven") == values.number(b"seven") != values.number("eight")
    assert values.number("07") != 7
    assert values.number(b"\xff\xfe") != values.number(b"\xff\xfd")
    assert values.number(-1) > 1 << 50
    assert values.number(10**20) != values.number(10**20 + 1)


@pytest.mark.parametrize("value", [1.5, True, ["a"], {"id": 7}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="set history"):
        RecordedValues().number(value)


@pytest.mark.parametrize(
    "records",
    [
        [("orders-2", 5, b"x")],
        ("orders-2", 5, b"x"),
        [Confluent(5, b"x")],
        Confluent(5, b"x"),
        [Theirs("orders", 2, 5, b"x")],
        {TopicPartition("orders", 2): [Theirs("orders", 2, 5, b"x")]},
        {TopicPartition("orders", 2): [ConsumerRecord("orders", 2, 5, 0, None, b"x", (), -1)]},
        [(TopicPartition("orders", 2), 5, b"x")],
        Theirs("orders", 2, 5, b"x"),
    ],
)
def test_records_of_every_client(records: Any) -> None:
    assert list(read_records(records)) == [("orders-2", 5, b"x")]


def test_no_records() -> None:
    assert list(read_records(None)) == list(read_records({})) == list(read_records([])) == []


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="has no offset"):
        list(read_records([b"x"]))


def test_a_value_may_be_a_part_of_the_record() -> None:
    records = [Confluent(5, b"id=7;name=x")]
    found = list(read_records(records, lambda raw: raw.partition(b";")[0][3:]))
    assert found == [("orders-2", 5, b"7")]


def test_a_topic_with_one_partition_names_it() -> None:
    assert key_of(FreshTopic("orders", 1)) == "orders-0"
    assert key_of("orders-3") == "orders-3"
    topic = FreshTopic("orders", 3)
    assert topic.key(2) == "orders-2"
    with pytest.raises(ValueError, match=r"orders has 3 partitions: name one, as topic\.key\(0\)"):
        key_of(topic)
    with pytest.raises(TypeError, match="is no topic-partition"):
        key_of(7)


def test_the_name_of_a_topic_begins_with_that_of_its_test() -> None:
    assert topic_name("test_orders[kill all-3]") == "test_orders_kill_all_3"
    assert topic_name("\u00e4") == "test"
    assert len(topic_name("x" * 300)) == 80

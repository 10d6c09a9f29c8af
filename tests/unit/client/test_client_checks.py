"""Arguments of a wrong type or value are refused at once, in words."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorumlog.client import (
    Consumer,
    ErrorCode,
    KafkaError,
    OffsetAndMetadata,
    TopicPartition,
)
from quorumlog.client.checks import (
    checked_names,
    checked_partitions,
    checked_places,
    checked_subscription,
    checked_timestamps,
)
from quorumlog.client.io import coordinator
from tests.support.client.fake_cluster import T
from tests.support.client.fake_group import COMMIT, GroupCluster
from tests.support.client.opened import in_group
from tests.support.client.refusals import refused

WRONG: list[tuple[Callable[[Any], object], Any, type[Exception], str]] = [
    (checked_names, "ab", TypeError, r"must be a list of names: \['ab'\]"),
    (checked_names, [1], TypeError, "each a str, not 1"),
    (checked_names, None, TypeError, "must be a list of names, not None"),
    (checked_partitions, T, TypeError, "must be a list of TopicPartitions"),
    (checked_partitions, [("t", 0)], TypeError, r"must be a TopicPartition, not \('t', 0\)"),
    (checked_partitions, 7, TypeError, "must be a list of TopicPartitions, not 7"),
    (checked_partitions, [TopicPartition("t", "0")], TypeError, "a str and an int"),  # type: ignore[arg-type]
    (checked_partitions, [TopicPartition("t", -1)], ValueError, "a partition is not negative: -1"),
    (checked_places, {T: -5}, ValueError, "an offset is 0 to"),
    (checked_places, {T: 2**63}, ValueError, "an offset is 0 to"),
    (checked_places, {T: "5"}, TypeError, "an offset is an int, not '5'"),
    (checked_places, {T: True}, TypeError, "an offset is an int, not True"),
    (checked_places, {T: OffsetAndMetadata(5, metadata=None)}, TypeError, "metadata a str"),  # type: ignore[arg-type]
    (checked_places, {"t": 5}, TypeError, "must be a TopicPartition, not 't'"),
    (checked_places, [T], TypeError, "must be a dict of TopicPartition to offsets"),
    (checked_timestamps, [T], TypeError, "must be a dict of TopicPartition to times in ms"),
    (checked_timestamps, {T: 1.5}, TypeError, "an int of milliseconds, not 1.5"),
    (checked_timestamps, {T: -9}, ValueError, "milliseconds since 1970: -9"),
]


@pytest.mark.parametrize(("check", "value", "error", "complaint"), WRONG)
def test_what_cannot_be_is_refused(
    check: Callable[[Any], object], value: Any, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        check(value)


def test_what_can_be_is_taken() -> None:
    assert checked_partitions([T, T]) == [T]
    assert checked_places({T: 5}) == {T: OffsetAndMetadata(5)}
    assert checked_timestamps({T: -2}) == {T: -2}


@asynccontextmanager
async def assigned() -> AsyncIterator[tuple[GroupCluster, Consumer]]:
    async with in_group(group_id="g", enable_auto_commit=False) as (cluster, consumer):
        consumer.assign([T])
        yield cluster, consumer


@pytest.mark.parametrize(
    ("pattern", "protocol", "error", "text"),
    [
        ("t.*", "classic", ValueError, "group_protocol='consumer'"),
        ("", "consumer", ValueError, "an empty pattern"),
        (b"t", "consumer", TypeError, "a pattern is a str"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(
    pattern: Any, protocol: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        checked_subscription([], pattern, protocol)
    assert checked_subscription(["u"], "t.*", "consumer") == ["u"]
    assert checked_subscription(["u"], None, "classic") == ["u"]


async def test_a_consumer_checks_before_it_does_anything() -> None:
    async with assigned() as (cluster, consumer):
        wrong: Any = "5"
        alone: Any = T
        with pytest.raises(TypeError, match="an offset is an int, not '5'"):
            consumer.seek(T, wrong)
        with pytest.raises(ValueError, match="an offset is 0 to"):
            consumer.seek(T, -1)
        with pytest.raises(TypeError, match="a list of TopicPartitions"):
            await consumer.committed(alone)
        with pytest.raises(TypeError, match="a dict of TopicPartition"):
            await consumer.offsets_for_times([alone])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a list of TopicPartitions"):
            await consumer.end_offsets(alone)
        with pytest.raises(ValueError, match="an offset is 0 to"):
            await consumer.commit({T: -5})
        with pytest.raises(TypeError, match="a list of topics"):
            consumer.subscribe("t")
        assert COMMIT not in {api for _, api in cluster.asked}


async def test_a_commit_names_the_partition_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "UNKNOWN_TOPIC_MS", 20)

    async with assigned() as (cluster, consumer):
        cluster.refusals = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1_000
        text = "group g: the offset of t-0 is not committed"
        with refused(text, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await consumer.commit({T: 5})


async def test_a_commit_ends_when_the_caller_said() -> None:
    async with assigned() as (cluster, consumer):
        cluster.refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1_000
        with pytest.raises(KafkaError, match="group g"):
            await consumer.commit({T: 5}, timeout_ms=50)

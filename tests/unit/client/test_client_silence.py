"""A client that waits in vain says so in the log; reading creates nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from quorumlog.client import Consumer, KafkaError, Producer, TopicPartition
from quorumlog.client.core import absences
from quorumlog.client.core.metadata_cache import Leader
from quorumlog.client.io import cluster as cluster_module
from quorumlog.client.settings import ConsumerOptions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.support.client.fake_cluster import METADATA, PRODUCE, T, fake_cluster
from tests.support.client.fake_group import FIND, group_cluster

LOGGER = "quorumlog.client.io.lookout"
EARLY: ConsumerOptions = {"auto_offset_reset": "earliest", "client_id": "me"}
HASTY: ConsumerOptions = {**EARLY, "default_api_timeout_ms": 50}
GROUP: ConsumerOptions = {**HASTY, "group_id": "g"}
Said = Callable[[str], Awaitable[None]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Said:
    """Wait until the log has a line with this text."""
    monkeypatch.setattr(absences, "REPORT_AFTER_MS", 1)
    caplog.set_level(logging.INFO, LOGGER)

    async def wait(text: str) -> None:
        while not any(text in record.getMessage() for record in caplog.records):
            await asyncio.sleep(0.001)

    return wait


async def polled(consumer: Consumer, waiting: Awaitable[None]) -> None:
    """Poll until `waiting` is done."""
    task = asyncio.ensure_future(waiting)
    while not task.done():
        await consumer.poll(1)
    await task


async def poll_on(consumer: Consumer) -> None:
    while True:
        await consumer.poll(10)


async def test_brokers_that_are_gone_are_named_with_the_cause_once(
    said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap, **EARLY) as consumer,
    ):
        consumer.assign([T])
        await consumer.position(T)
        for broker in (1, 2):
            await cluster.kill(broker)
        await polled(consumer, said("me: the cluster: no broker answers: 127.0.0.1"))
        assert "connection refused: no process listens there" in caplog.text
        await cluster.start(1)
        await polled(consumer, said("me: the cluster: found"))
        assert caplog.text.count("no broker answers") == 1


async def test_a_partition_without_a_leader_is_said_by_who_waits_for_it(said: Said) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Producer(cluster.bootstrap, client_id="sender", linger_ms=0) as producer,
    ):
        await producer.send_and_wait("t", b"0")
        cluster.leaders[T] = Leader(-1, 1)
        await cluster.kill(1)
        delivery = await producer.send("t", b"1")
        await said("sender: t-0: no broker leads it")
        cluster.leaders[T] = Leader(2, 2)
        await delivery
        await said("sender: t-0: found")


async def test_a_leader_that_cannot_be_reached_is_said(said: Said) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap, **EARLY) as consumer,
    ):
        consumer.assign([T])
        await consumer.position(T)
        await cluster.kill(1)
        text = "me: t-0: its leader, broker 1, cannot be reached: 127.0.0.1"
        await polled(consumer, said(text))


async def test_a_leader_that_refuses_to_be_read_is_said(said: Said) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap, **EARLY) as consumer,
    ):
        cluster.fault = lambda _, api: ErrorCode.KAFKA_STORAGE_ERROR if api == 1 else None
        consumer.assign([T])
        await polled(consumer, said("me: t-0: its leader refuses to be read: KAFKA_STORAGE_ERROR"))
        cluster.fault = lambda _, __: None
        await polled(consumer, said("me: t-0: found"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (TopicPartition("typo", 0), "typo-0: topic 'typo' does not exist"),
        (TopicPartition("t", 7), "t-7: t has 1 partitions, counted from 0"),
    ],
)
async def test_an_assigned_partition_that_does_not_exist_is_said_and_raised(
    said: Said, name: TopicPartition, text: str
) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap, **HASTY) as consumer,
    ):
        consumer.assign([name, T])
        await said(text)
        for _ in range(2):  # as long as it lasts
            with pytest.raises(KafkaError, match=f"{name} does not exist") as caught:
                await poll_on(consumer)
            assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert caught.value.definite
        cluster.topics[name.topic] = 8
        await said(f"{name}: found")


async def test_a_subscribed_topic_that_does_not_exist_is_waited_for(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "MISSING_TOPIC_REFRESH_MS", 1)

    async with (
        asyncio.timeout(20),
        group_cluster() as cluster,
        Consumer(cluster.bootstrap, **GROUP) as consumer,
    ):
        consumer.subscribe(["later"])
        await polled(consumer, said("topic 'later': does not exist"))
        cluster.topics["later"] = 1
        await polled(consumer, said("topic 'later': found"))
        while not consumer.assignment():
            await consumer.poll(1)


async def test_a_coordinator_that_is_not_there_is_said(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        asyncio.timeout(20),
        group_cluster() as cluster,
        Consumer(cluster.bootstrap, **GROUP) as consumer,
    ):
        find = cluster.find

        def lost(request: object) -> object:
            answer = find(request)
            answer.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            return answer

        monkeypatch.setattr(cluster, "find", lost)
        consumer.subscribe(["t"])
        await polled(consumer, said("the coordinator of group g: COORDINATOR_NOT_AVAILABLE"))
        monkeypatch.setattr(cluster, "find", find)
        await polled(consumer, said("the coordinator of group g: found"))
        assert FIND in {api for _, api in cluster.asked}


async def test_asking_for_a_topic_that_does_not_exist_creates_none_and_ends_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "UNKNOWN_TOPIC_MS", 20)

    async with asyncio.timeout(20), fake_cluster() as cluster:
        creations = []
        answer = cluster.metadata

        def metadata(request: object) -> object:
            creations.append(request.allow_auto_topic_creation)  # type: ignore[attr-defined]
            return answer(request)

        monkeypatch.setattr(cluster, "metadata", metadata)
        async with Consumer(cluster.bootstrap, **EARLY) as consumer:
            for question in (
                consumer.partitions_for("typo"),
                consumer.end_offsets([TopicPartition("typo", 0)]),
            ):
                with pytest.raises(KafkaError, match=r"'typo'.* it does not exist") as caught:
                    await question
                assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            with pytest.raises(KafkaError, match="t has 1 partitions, counted from 0: no 7"):
                await consumer.beginning_offsets([TopicPartition("t", 7)])
        assert METADATA in {api for _, api in cluster.asked}
        assert not any(creations)
        creations.clear()
        async with Producer(cluster.bootstrap, max_block_ms=50) as producer:
            with pytest.raises(KafkaError, match="typo"):
                await producer.send("typo", b"")
        assert all(creations)


async def test_a_new_topic_is_waited_for_a_moment() -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap, **EARLY) as consumer,
    ):
        asked = asyncio.ensure_future(consumer.partitions_for("new"))
        while len([1 for _, api in cluster.asked if api == METADATA]) < 3:
            await asyncio.sleep(0.001)
        cluster.topics["new"] = 2
        assert await asked == [0, 1]


async def test_a_silent_cluster_does_not_make_what_is_missing_seem_found(
    said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap, **EARLY) as consumer,
    ):
        consumer.assign([T, TopicPartition("typo", 0)])
        await consumer.position(T)
        await polled(consumer, said("typo-0: topic 'typo' does not exist"))
        for broker in (1, 2):
            await cluster.kill(broker)
        await polled(consumer, said("the cluster: no broker answers"))
        await cluster.start(1)
        await polled(consumer, said("the cluster: found"))
        assert "typo-0: found" not in caplog.text


async def test_records_that_a_leader_refuses_are_said(said: Said) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Producer(cluster.bootstrap, linger_ms=0) as producer,
    ):
        few = ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.fault = lambda _, api: few if api == PRODUCE else None
        delivery = await producer.send("t", b"")
        await said("t-0: its leader does not take records: NOT_ENOUGH_REPLICAS")
        cluster.fault = lambda _, __: None
        await delivery
        await said("t-0: found")


async def test_a_position_that_a_leader_does_not_return_is_said(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap, default_api_timeout_ms=5_000) as consumer,
    ):
        one = ListOffsetsPartitionResponse(
            partition_index=0, error_code=ErrorCode.OFFSET_NOT_AVAILABLE
        )
        topic = ListOffsetsTopicResponse(name="t", partitions=[one])
        refused = ListOffsetsResponse(topics=[topic])
        monkeypatch.setattr(cluster, "list_offsets", lambda _: refused)
        consumer.assign([T])
        await said("t-0: its leader returns no offset: OFFSET_NOT_AVAILABLE")
        asked = asyncio.ensure_future(consumer.end_offsets([T]))
        await said("ListOffsets: t-0: OFFSET_NOT_AVAILABLE")
        asked.cancel()

"""Consumer groups of KIP-848 over sockets: our consumers, and librdkafka's, with one broker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from quorumlog.client import (
    Admin,
    Consumer,
    ErrorCode,
    KafkaError,
    NewTopic,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from tests.support.groups.single_broker import SETTINGS, SingleBroker, TestController, single_broker
from tests.support.waiting import until

pytestmark = pytest.mark.integration
COUNT = 80
EVERY = frozenset(TopicPartition("t", index) for index in range(4))


@asynccontextmanager
async def broker_with_groups(directory: Path, level: int = 1) -> AsyncIterator[SingleBroker]:
    controller = TestController()
    controller.image = replace(controller.image, features={"group.version": level})
    settings = replace(SETTINGS, group_consumer_heartbeat_interval_ms=100)
    async with single_broker(directory, settings, controller) as broker:
        async with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
            await admin.create_topics([NewTopic("t", 4, 1)])
            for index in range(COUNT):
                await producer.send("t", b"%d" % index, partition=index % 4)
        yield broker


class Told(RebalanceListener):
    """What a consumer is told."""

    def __init__(self) -> None:
        self.has: frozenset[TopicPartition] = frozenset()
        self.lost: frozenset[TopicPartition] = frozenset()

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.has |= partitions

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.has -= partitions

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.has -= partitions
        self.lost |= partitions


class Reading:
    """A consumer in a task of its own."""

    def __init__(
        self, broker: SingleBroker, *, pattern: str | None = None, instance: str | None = None
    ) -> None:
        self.told, self.values = Told(), list[bytes]()
        self.stop, self.generation = asyncio.Event(), -1
        self.task = asyncio.create_task(self.run(broker, pattern, instance))

    async def run(self, broker: SingleBroker, pattern: str | None, instance: str | None) -> None:
        async with Consumer(
            broker.bootstrap,
            group_id="g",
            group_protocol="consumer",
            group_instance_id=instance,
            auto_offset_reset="earliest",
        ) as consumer:
            topics = [] if pattern else ["t"]
            consumer.subscribe(topics, self.told, pattern=pattern)
            while not self.stop.is_set():
                for records in (await consumer.poll(50)).values():
                    self.values += [record.value or b"" for record in records]
                self.generation = consumer.group_metadata().generation_id
                if self.told.has:
                    await consumer.commit()

    async def end(self) -> None:
        self.stop.set()
        await self.task


async def test_members_share_and_hand_over_what_they_have_read(tmp_path: Path) -> None:
    async with broker_with_groups(tmp_path) as broker, Admin(broker.bootstrap) as admin:
        first = Reading(broker)
        await until(lambda: first.told.has == EVERY and len(first.values) == COUNT)
        second = Reading(broker, pattern="t|u.*")
        await until(lambda: len(first.told.has) == len(second.told.has) == 2)
        assert first.told.has | second.told.has == EVERY
        [listed] = await admin.list_consumer_groups()
        assert (listed.group_id, listed.group_type) == ("g", "consumer")
        group = (await admin.describe_consumer_groups(["g"]))["g"]
        assert (group.state, group.group_type, group.protocol) == ("Stable", "consumer", "uniform")
        assert {one for member in group.members for one in member.assignment} == EVERY
        await first.end()
        await until(lambda: second.told.has == EVERY)
        await second.end()
        assert sorted(first.values + second.values) == sorted({*first.values})
        assert first.told.lost == second.told.lost == frozenset()
        await admin.delete_consumer_groups(["g"])
        assert await admin.list_consumer_groups() == []


async def test_a_static_member_comes_back_to_what_it_had(tmp_path: Path) -> None:
    async with broker_with_groups(tmp_path) as broker:
        static, other = Reading(broker, instance="i"), Reading(broker)
        await until(lambda: len(static.told.has) == len(other.told.has) == 2)
        had, kept, epoch = static.told.has, other.told.has, other.generation
        await static.end()
        again = Reading(broker, instance="i")
        await until(lambda: again.told.has)
        assert (again.told.has, other.told.has, other.generation) == (had, kept, epoch)
        await again.end()
        await other.end()


async def test_a_cluster_without_the_protocol_says_so_at_once(tmp_path: Path) -> None:
    async with broker_with_groups(tmp_path, level=0) as broker:
        reading = Reading(broker)
        with pytest.raises(KafkaError, match=r"group\.protocol=classic") as caught:
            await reading.task
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.skipif(
    not hasattr(confluent_kafka, "ShareConsumer"), reason="confluent-kafka has it since 2.15"
)
async def test_a_share_consumer_of_librdkafka_fails_at_once(tmp_path: Path) -> None:
    async with broker_with_groups(tmp_path) as broker:

        def poll() -> None:
            consumer = confluent_kafka.ShareConsumer(
                {"bootstrap.servers": broker.bootstrap, "group.id": "shared"}
            )
            consumer.subscribe(["t"])
            try:
                for _ in range(100):
                    consumer.poll(0.1)
            finally:
                consumer.close()

        with pytest.raises(confluent_kafka.KafkaException) as caught:
            await asyncio.to_thread(poll)
        error = caught.value.args[0]
        assert (error.fatal(), error.code()) == (True, ErrorCode.UNSUPPORTED_VERSION)


class Confluent:
    """A consumer of librdkafka in a thread of its own."""

    def __init__(self, broker: SingleBroker, topic: str) -> None:
        self.has: set[int] = set()
        self.values: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(broker.bootstrap, topic))
        self._thread.start()

    def _run(self, bootstrap: str, topic: str) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "g",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
            }
        )

        def changed(change: Callable[[set[int]], None]) -> Callable[[Any, list[Any]], None]:
            return lambda _, parts: change({part.partition for part in parts})

        consumer.subscribe(
            [topic],
            on_assign=changed(self.has.update),
            on_revoke=changed(self.has.difference_update),
        )
        while not self._stop.is_set():
            for message in consumer.consume(100, timeout=0.05):
                if message.error() is None:
                    self.values.append(message.value() or b"")
        consumer.close()

    async def end(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join)


async def test_librdkafkas_members_share_with_ours(tmp_path: Path) -> None:
    async with broker_with_groups(tmp_path) as broker:
        theirs = Confluent(broker, "^t.*")
        await until(lambda: len(theirs.has) == 4 and len(theirs.values) == COUNT)
        ours = Reading(broker)
        await until(lambda: len(theirs.has) == len(ours.told.has) == 2)
        await theirs.end()
        await until(lambda: ours.told.has == EVERY)
        await ours.end()

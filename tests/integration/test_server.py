"""One broker, librdkafka: it lists metadata, joins a group and goes on after a restart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]  # not in __all__

from tests.support.groups.single_broker import single_broker

pytestmark = pytest.mark.integration

MESSAGES = 30


class Confluent:
    """librdkafka."""

    def __init__(self, bootstrap: str) -> None:
        self.config: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap}

    def produce(self) -> None:
        producer = Producer(self.config | {"enable.idempotence": True})
        for value in range(MESSAGES):
            producer.produce("t", str(value))
        assert producer.flush(20) == 0

    def consumer(self) -> Any:
        return Consumer(
            self.config
            | {
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 100,
            }
        )

    def consume(self, count: int) -> list[int]:
        consumer = self.consumer()
        consumer.subscribe(["t"])
        values: list[int] = []
        while len(values) < count:
            message = consumer.poll(20)
            assert message is not None, "nothing came"
            assert message.error() is None
            values.append(int(message.value()))
        consumer.commit(asynchronous=False)
        consumer.close()
        return values


def describe_with_confluent(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [created] = admin.create_topics([NewTopic("t", 3, 1)]).values()
    assert created.result(timeout=20) is None
    metadata = admin.list_topics(timeout=20)
    assert [*metadata.topics["t"].partitions] == [0, 1, 2]
    [configs] = admin.describe_configs([ConfigResource("TOPIC", "t")]).values()
    assert configs.result(timeout=20)["cleanup.policy"].value == "delete"


def manage_groups_with_confluent(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups().result(timeout=20)
    assert [group.group_id for group in listed.valid] == ["g"]
    described = admin.describe_consumer_groups(["g"])["g"].result(timeout=20)
    assert described.state.name == "EMPTY"
    assert admin.delete_consumer_groups(["g"])["g"].result(timeout=20) is None
    [deleted] = admin.delete_topics(["t"]).values()
    assert deleted.result(timeout=20) is None


async def test_confluent_kafka_from_creation_to_deletion(tmp_path: Path) -> None:
    async with single_broker(tmp_path) as broker:
        client = Confluent(broker.bootstrap)
        await asyncio.to_thread(describe_with_confluent, broker.bootstrap)
        await asyncio.to_thread(client.produce)
        values = await asyncio.to_thread(client.consume, MESSAGES)
        assert sorted(values) == [*range(MESSAGES)]
        await asyncio.to_thread(manage_groups_with_confluent, broker.bootstrap)


async def test_two_members_share_the_partitions_and_one_takes_over(tmp_path: Path) -> None:
    def poll_until_assigned(consumers: list[Any], sizes: list[int]) -> None:
        for _ in range(400):
            for consumer in consumers:
                consumer.poll(0.05)
            if sorted(len(consumer.assignment()) for consumer in consumers) == sizes:
                return
        raise AssertionError([consumer.assignment() for consumer in consumers])

    def share(bootstrap: str) -> None:
        client = Confluent(bootstrap)
        first, second = client.consumer(), client.consumer()
        first.subscribe(["t"])
        second.subscribe(["t"])
        poll_until_assigned([first, second], [1, 2])
        parts = [{part.partition for part in one.assignment()} for one in (first, second)]
        assert parts[0] | parts[1] == {0, 1, 2}
        second.close()
        poll_until_assigned([first], [3])
        first.close()

    async with single_broker(tmp_path) as broker:
        await asyncio.to_thread(describe_with_confluent, broker.bootstrap)
        await asyncio.to_thread(share, broker.bootstrap)


async def test_committed_offsets_survive_a_restart(tmp_path: Path) -> None:
    """The second broker leads the same logs, and loads the groups from them."""

    async with single_broker(tmp_path) as broker:
        await asyncio.to_thread(describe_with_confluent, broker.bootstrap)
        client = Confluent(broker.bootstrap)
        await asyncio.to_thread(client.produce)
        before = await asyncio.to_thread(client.consume, MESSAGES)
    async with single_broker(tmp_path, controller=broker.controller) as restarted:
        client = Confluent(restarted.bootstrap)
        await asyncio.to_thread(client.produce)
        after = await asyncio.to_thread(client.consume, MESSAGES)
        assert sorted(after) == sorted(before) == [*range(MESSAGES)]
        admin = AdminClient(client.config)
        groups = await asyncio.to_thread(admin.list_consumer_groups().result, 20)
        assert [group.group_id for group in groups.valid] == ["g"]

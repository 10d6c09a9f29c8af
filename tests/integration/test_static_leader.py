"""A static member that leads a classic group comes back: it keeps what it had (KIP-814)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from quorumlog.client import Admin, Consumer, NewTopic, TopicPartition
from tests.support.groups.single_broker import SingleBroker, single_broker
from tests.support.waiting import until

pytestmark = pytest.mark.integration


def partitions(count: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", index) for index in range(count))


@asynccontextmanager
async def reading(broker: SingleBroker, instance: str) -> AsyncIterator[Consumer]:
    """Keep a static member in its group."""
    async with Consumer(broker.bootstrap, group_id="g", group_instance_id=instance) as consumer:
        consumer.subscribe(["t"])

        async def poll() -> None:
            while True:
                await consumer.poll(20)

        task = asyncio.create_task(poll())
        try:
            yield consumer
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_partitions_that_came_while_the_leader_was_away_find_an_owner(tmp_path: Path) -> None:
    async with asyncio.timeout(60), single_broker(tmp_path) as broker, AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(broker.bootstrap))
        await admin.create_topics([NewTopic("t", 4, 1)])
        async with reading(broker, "leader") as leader:
            await until(lambda: leader.assignment() == partitions(4))
            other = await stack.enter_async_context(reading(broker, "other"))
            await until(lambda: len(leader.assignment()) == len(other.assignment()) == 2)
            had, generation_id = leader.assignment(), leader.group_metadata().generation_id
        async with reading(broker, "leader") as leader:  # nothing has changed
            await until(lambda: leader.assignment() == had)
            assert leader.group_metadata().generation_id == generation_id
        await admin.create_partitions({"t": 6})
        async with reading(broker, "leader") as leader:
            await until(lambda: leader.assignment() | other.assignment() == partitions(6))
            assert leader.assignment().isdisjoint(other.assignment())
            assert leader.group_metadata().generation_id == generation_id + 1

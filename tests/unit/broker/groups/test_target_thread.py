"""Consumer groups in the event loop: topics of the image, and targets that a thread makes."""

import asyncio
import threading
from typing import Any

import pytest

from quorumlog.broker.groups.core.consumer.assignors import ASSIGNORS, assign_uniform
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, HeartbeatResult
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage, TopicImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicId, TopicPartition
from tests.support.groups.consumer.coordination import heartbeat, join
from tests.support.groups.memory_log import World

ID = TopicId(b"i" * 16)


def publish(world: World, partitions: int, name: str = "t") -> None:
    partition = PartitionImage(
        replicas=(BrokerId(1),),
        isr=(BrokerId(1),),
        leader_id=BrokerId(1),
        leader_epoch=Epoch(0),
        partition_epoch=Epoch(0),
    )
    topic = TopicImage(name=name, topic_id=ID, partitions=(partition,) * partitions)
    changed = frozenset(TopicPartition(name, index) for index in range(partitions))
    image = ClusterImage(topics={name: topic}, topic_names={ID: name})
    world.service.publish(ClusterDelta(partitions=changed), image)


async def beat(world: World, request: ConsumerHeartbeat) -> HeartbeatResult:
    async with asyncio.timeout(5):
        return await world.service.ask(request)


async def test_topics_come_and_grow_and_a_large_target_is_made_by_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []

    def assign(members: Any, counts: Any) -> Any:
        threads.append(threading.current_thread().name)
        return assign_uniform(members, counts)

    monkeypatch.setitem(ASSIGNORS, "uniform", assign)
    world = World()
    await world.lead()
    publish(world, 3)
    first = await beat(world, join("m"))
    assert (first.member_epoch, len(first.assignment or ())) == (1, 3)
    publish(world, 3000)
    second = await beat(world, heartbeat("m", 1))
    assert (second.member_epoch, len(second.assignment or ())) == (2, 3000)
    assert threads[0] == threading.main_thread().name
    assert threads[1].startswith("group-targets")
    world.service.stop()
    assert world.violations == []


async def test_a_target_that_cannot_be_made_is_a_bug_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def assign(members: Any, counts: Any) -> Any:
        raise KeyError("bug")

    monkeypatch.setitem(ASSIGNORS, "uniform", assign)
    world = World()
    await world.lead()
    publish(world, 3000)
    asked = world.service.ask(join("m"))
    async with asyncio.timeout(5):
        while not world.violations:
            await asyncio.sleep(0)
    assert "KeyError" in str(world.violations[0])
    world.service.stop()
    assert (await asked).error_code is ErrorCode.NOT_COORDINATOR


async def test_a_target_that_comes_after_the_end_changes_nothing() -> None:
    world = World()
    await world.lead()
    publish(world, 3000)
    asked = world.service.ask(join("m"))
    world.service.stop()
    assert (await asked).error_code is ErrorCode.NOT_COORDINATOR
    assert world.violations == []

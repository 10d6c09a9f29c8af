"""Coordinators of groups with which most tests begin: with members, an offset, a log."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.groups.consumer.coordination import ConsumerCoordination
from tests.support.groups.consumer.coordination import join as consumer_join
from tests.support.groups.coordination import Coordination, commit
from tests.support.groups.memory_log import MemoryLog, World


def stable(*names: str, **options: Any) -> Coordination:
    """Return them with a stable group of these members."""
    group = Coordination()
    group.stable(*names, **options)
    return group


def committed(offset: int) -> Coordination:
    """Return them with this offset of a group without members."""
    group = Coordination()
    group.answer(commit(offset))
    return group


@asynccontextmanager
async def leading(epoch: int = 0, log: MemoryLog | None = None) -> AsyncIterator[World]:
    """Run a service that leads its partition of the offsets topic."""
    world = World(log)
    await world.lead(epoch)
    yield world
    world.service.stop()


def consumers(*member_ids: str) -> ConsumerCoordination:
    """Return the coordinator of a consumer group that these members join one after another."""
    groups = ConsumerCoordination()
    for member_id in member_ids:
        groups.beat(consumer_join(member_id))
    return groups

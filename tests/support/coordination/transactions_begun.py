"""Coordinators that have the producer of the id `x`, as most tests of transactions begin."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.broker.transactions.core.requests import NO_PRODUCER, ProducerIdAndEpoch
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.transactions.coordination import Coordination
from tests.support.transactions.service import ServiceWorld

Begun = tuple[Coordination, ProducerIdAndEpoch]


def begun(expected: ProducerIdAndEpoch = NO_PRODUCER, **changes: Any) -> Begun:
    driven = Coordination()
    return driven, driven.begun(expected, **changes)


def opened(*partitions: TopicPartition, api_version: int = 5) -> Begun:
    """Return them with an open transaction."""
    driven = Coordination()
    return driven, driven.opened(*partitions, api_version=api_version)


@asynccontextmanager
async def open_transaction(
    leaders: Mapping[str, Iterable[int]], *partitions: TopicPartition, epoch: int = 0
) -> AsyncIterator[tuple[ServiceWorld, ProducerIdAndEpoch]]:
    """Run a service with an open transaction of these partitions."""
    world = ServiceWorld()
    await world.lead(leaders, epoch)
    yield world, await world.opened(*partitions)
    await world.stop()

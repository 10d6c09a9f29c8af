"""Mirrors in tests of real clusters: settings, runs to an end, records at both sides."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from quorumlog import Admin, Consumer, Producer
from quorumlog.client import ConsumerRecord, NewTopic, TopicPartition
from quorumlog.mirror import Mirror, MirrorSettings
from quorumlog.mirror.reports import OnReport, Report, log_report

TIMEOUT_S = 60


class Sides(NamedTuple):
    """The bootstrap addresses of two clusters."""

    source: str
    target: str

    def turned(self) -> "Sides":
        return Sides(self.target, self.source)


def settings(sides: Sides, topic: str, **changes: Any) -> MirrorSettings:
    values: dict[str, Any] = {
        "source": {"bootstrap_servers": sides.source},
        "target": {"bootstrap_servers": sides.target},
        "topics": (topic,),
        "alias": topic,  # each test has its own positions
        "refresh_interval_ms": 200,
        "group_interval_ms": 200,
    }
    return MirrorSettings(**values | changes)


async def copy_once(wanted: MirrorSettings) -> list[Report]:
    """Copy all that is there; return what the mirror reports."""
    reports: list[Report] = []
    async with asyncio.timeout(TIMEOUT_S), Mirror(wanted, reports.append) as mirror:
        await mirror.run()
    return reports


@asynccontextmanager
async def running(
    wanted: MirrorSettings, on_report: OnReport = log_report
) -> AsyncIterator[asyncio.Task[None]]:
    async with Mirror(wanted, on_report) as mirror:
        task = asyncio.create_task(mirror.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


async def until(holds: Callable[[], Any], task: asyncio.Task[None] | None = None) -> None:
    """Wait until an async condition holds; the task's error ends the wait."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await holds():
            if task is not None and task.done():
                task.result()
            await asyncio.sleep(0.05)


async def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    async with Admin(bootstrap) as admin:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        await admin.create_topics([NewTopic(topic, partitions, 1, configs=named)])


async def send(bootstrap: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    async with Producer(bootstrap) as producer:
        await (await producer.send_many(topic, values, partition=partition))


async def read(bootstrap: str, *places: TopicPartition) -> list[ConsumerRecord]:
    """Return all committed records of the partitions."""
    found: list[ConsumerRecord] = []
    async with Consumer(bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        for place in places:
            while await consumer.position(place) < ends[place]:
                for records in (await consumer.poll(100)).values():
                    found += records
    return found


async def values_at(bootstrap: str, topic: str, partition: int = 0) -> list[bytes | None]:
    return [one.value for one in await read(bootstrap, TopicPartition(topic, partition))]


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]

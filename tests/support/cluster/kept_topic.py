"""A topic of numbers on a cluster of real processes: made, written, read and waited for."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import NewTopic, TopicPartition

TOPIC: Final = "kept"


def wait_for(holds: Callable[[], object], *, within_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


async def create(bootstrap: str, name: str = TOPIC, **given: Any) -> None:
    """`given`: the other fields of the NewTopic."""
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(name, **given)])


async def produce(bootstrap: str, values: range, **options: Any) -> None:
    """Send one value after the other, each once the value before is acknowledged."""
    async with Producer(bootstrap, linger_ms=0, **options) as producer:
        for value in values:
            await producer.send_and_wait(TOPIC, b"%d" % value)


async def read_all(bootstrap: str, topic: str = TOPIC) -> list[int]:
    """Return the values up to the end offsets, each partition in its order."""
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        found = [TopicPartition(topic, index) for index in await consumer.partitions_for(topic)]
        consumer.assign(found)
        ends = await consumer.end_offsets(found)
        values: list[int] = []
        async with asyncio.timeout(30):
            while len(values) < sum(ends.values()):
                for records in (await consumer.poll(500)).values():
                    values += [int(record.value or b"") for record in records]
    return values


def partition(cluster: LocalCluster) -> dict[str, Any]:
    """The state of partition 0, as the status shows it."""
    found: dict[str, Any] = cluster.status()["topics"][TOPIC]["partitions"][0]
    return found

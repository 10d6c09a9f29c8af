"""A cluster of real processes with more partitions than a slice has: it dies, and is back."""

import asyncio
from pathlib import Path

import pytest

from quorumlog.client import Admin, NewTopic, Producer
from quorumlog.cluster import LocalCluster

pytestmark = [pytest.mark.integration]
PARTITIONS = 520


def whole(cluster: LocalCluster) -> int:
    """How many partitions are led, with all replicas in sync."""
    partitions = cluster.status()["topics"]["many"]["partitions"]
    return sum(one["leader"] >= 0 and len(one["isr"]) == 3 for one in partitions)


async def write(cluster: LocalCluster) -> None:
    async with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for partition in range(0, PARTITIONS, 100):
            await producer.send_and_wait("many", b"x", partition=partition)


async def test_520_partitions_lose_a_broker_and_then_all(tmp_path: Path) -> None:
    """The death of one broker, and the return of it and of all, are decided in slices."""
    with LocalCluster(tmp_path / "cluster", nodes=3, port=0) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("many", PARTITIONS, 3)])
        await write(cluster)
        await asyncio.to_thread(cluster.kill, 1)
        await write(cluster)
        await asyncio.to_thread(cluster.kill, 2, 3)
        await asyncio.to_thread(cluster.start)
        async with asyncio.timeout(60):
            while await asyncio.to_thread(whole, cluster) < PARTITIONS:
                await asyncio.sleep(0.1)
        await write(cluster)

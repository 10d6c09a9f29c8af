"""Partitions move between real nodes while records are written: none is lost."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from quorumlog.client import Admin, NewTopic, Producer
from quorumlog.cluster import LocalCluster
from tests.support.cluster.kept_topic import read_all

pytestmark = pytest.mark.integration


async def write(bootstrap: str, stop: asyncio.Event) -> list[int]:
    """Send until `stop`; return what was acknowledged."""
    acknowledged: list[int] = []
    async with Producer(bootstrap, linger_ms=0, acks="all") as producer:
        while not stop.is_set():
            value = len(acknowledged)
            await producer.send_and_wait("moves", b"%d" % value, partition=value % 2)
            acknowledged.append(value)
    return acknowledged


async def reassign(bootstrap: str, *words: str) -> dict[str, object]:
    command = [sys.executable, "-m", "quorumlog", "reassign", "--topic", "moves", *words]
    process = await asyncio.create_subprocess_exec(
        *command, "--bootstrap", bootstrap, "--json", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 40)
    assert process.returncode == 0
    found: dict[str, object] = json.loads(out)
    return found


async def test_a_topic_moves_to_other_brokers_under_load(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster", nodes=3, port=0) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            on_1_and_2 = {0: [1, 2], 1: [2, 1]}
            await admin.create_topics([NewTopic("moves", assignments=on_1_and_2)])
            stop = asyncio.Event()
            writing = asyncio.create_task(write(cluster.bootstrap, stop))
            done = await reassign(cluster.bootstrap, "--brokers", "3,2")
            assert done["completed"] is True
            assert await admin.list_partition_reassignments() == {}
            await reassign(cluster.bootstrap, "--brokers", "1")
            stop.set()
            acknowledged = await writing
            views = (await admin.describe_topics(["moves"]))["moves"].partitions
            assert {view.replicas for view in views.values()} == {(1,)}
        assert len(acknowledged) > 0
        assert sorted({*await read_all(cluster.bootstrap, "moves")}) == acknowledged
        holding = {
            path.relative_to(tmp_path / "cluster").parts[0]
            for path in (tmp_path / "cluster").glob("**/moves-[01]")
        }
        assert holding == {"node-1"}, "the replicas that left are deleted"

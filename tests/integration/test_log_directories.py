"""Three nodes with two log directories each: one is taken away, and comes back."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.client import NewTopic, Producer
from quorumlog.cluster import layout
from tests.support.cluster.kept_topic import read_all

pytestmark = pytest.mark.integration
TOPIC, PARTITIONS, LIMIT_S = "t", 6, 60.0
CONFIG = {"min.insync.replicas": "2", "replica.high.watermark.checkpoint.interval.ms": "500"}


def cluster_of(directory: Path) -> LocalCluster:
    cluster = LocalCluster(directory, nodes=3, config=CONFIG)
    detours = {}
    for node in cluster.nodes:
        first = layout.data_directory(directory, node.id).resolve()
        detours[node.id] = {"log.dirs": f"{first},{second_of(directory, node.id)}"}
    cluster.take_detours(detours)
    return cluster


def second_of(directory: Path, node_id: int) -> Path:
    return (layout.node_directory(directory, node_id) / "second").resolve()


def take_away(second: Path) -> None:
    """As a disk that is unplugged: its files are gone, and none can be made."""
    second.rename(second.with_name("unplugged"))
    second.write_text("no directory")


def plug_in(second: Path) -> None:
    second.unlink()
    second.with_name("unplugged").rename(second)


async def create(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=3)]
        )


async def produce(bootstrap: str, values: range) -> None:
    async with Producer(bootstrap, acks=-1) as producer:
        await asyncio.gather(
            *(
                producer.send_and_wait(TOPIC, b"%d" % value, partition=value % PARTITIONS)
                for value in values
            )
        )


async def isrs(bootstrap: str) -> list[set[int]]:
    async with Admin(bootstrap) as admin:
        topic = (await admin.describe_topics([TOPIC]))[TOPIC]
        return [{*topic.partitions[index].isr} for index in range(PARTITIONS)]


async def until(happens: Callable[[list[set[int]]], bool], bootstrap: str) -> list[set[int]]:
    limit_s = time.monotonic() + LIMIT_S
    while not happens(seen := await isrs(bootstrap)):
        assert time.monotonic() < limit_s, seen
        await asyncio.sleep(0.2)
    return seen


def partitions_in(directory: Path) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in directory.glob(f"{TOPIC}-*")}


async def offline_directories(bootstrap: str, node_id: int) -> int:
    async with Admin(bootstrap) as admin:
        described = (await admin.describe_log_dirs([node_id]))[node_id]
        return sum(one.error_code != 0 for one in described.values())


def test_a_directory_that_is_taken_away_takes_only_its_replicas(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path)
    second = second_of(tmp_path, 1)
    with cluster:
        asyncio.run(create(cluster.bootstrap))
        asyncio.run(produce(cluster.bootstrap, range(60)))
        there = partitions_in(second)
        assert len(there) == PARTITIONS // 2

        def are_out(seen: list[set[int]]) -> bool:
            return all((1 in isr) == (index not in there) for index, isr in enumerate(seen))

        take_away(second)  # while it runs: the checkpoints are refused
        asyncio.run(until(are_out, cluster.bootstrap))
        asyncio.run(produce(cluster.bootstrap, range(60, 120)))
        assert asyncio.run(offline_directories(cluster.bootstrap, 1)) == 1

        cluster.kill(1)  # and at a start
        cluster.start_node(1)
        asyncio.run(until(are_out, cluster.bootstrap))
        asyncio.run(produce(cluster.bootstrap, range(120, 180)))

        cluster.stop_node(1)
        plug_in(second)
        cluster.start_node(1)
        asyncio.run(until(lambda seen: all(1 in isr for isr in seen), cluster.bootstrap))
        assert partitions_in(second) == there
        assert asyncio.run(offline_directories(cluster.bootstrap, 1)) == 0
        cluster.kill(2, 3)
        cluster.start()
        assert sorted(asyncio.run(read_all(cluster.bootstrap, TOPIC))) == [*range(180)]

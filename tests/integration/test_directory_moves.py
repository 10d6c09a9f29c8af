"""Replicas move between two log directories of real nodes, under load and a kill -9."""

import asyncio
from pathlib import Path

import pytest

from quorumlog import Admin
from quorumlog.client import Producer, TopicPartition
from quorumlog.client.errors import KafkaError
from quorumlog.cluster import layout
from tests.integration.test_log_directories import (
    PARTITIONS,
    TOPIC,
    cluster_of,
    create,
    partitions_in,
    produce,
    second_of,
)
from tests.support.cluster.kept_topic import read_all

pytestmark = pytest.mark.integration
LIMIT_S = 60.0
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
ALL = [*range(PARTITIONS)]


async def load(bootstrap: str, acknowledged: list[int], ends: asyncio.Event) -> None:
    """Produce with acks=all until told to end; note what was acknowledged."""
    value = 1000
    async with Producer(bootstrap, acks=-1) as producer:
        while not ends.is_set():
            value += 1
            await producer.send_and_wait(TOPIC, b"%d" % value, partition=value % PARTITIONS)
            acknowledged.append(value)


async def until_all_are_in(bootstrap: str, broker: int, path: str) -> None:
    async with asyncio.timeout(LIMIT_S), Admin(bootstrap) as admin:
        while True:
            try:
                found = (await admin.describe_log_dirs([broker]))[broker]
            except KafkaError:
                found = {}
            replicas = found[path].replicas if path in found else {}
            there = {at.partition for at, one in replicas.items() if not one.is_future}
            if {*ALL} <= there:
                return
            await asyncio.sleep(0.1)


async def move_all(bootstrap: str, broker: int, path: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.alter_replica_log_dirs(
            broker, {TopicPartition(TOPIC, index): path for index in ALL}
        )


async def set_rate(bootstrap: str, rate: int | None) -> None:
    async with Admin(bootstrap) as admin:
        if rate is None:
            await admin.alter_configs("broker", "", delete=[RATE])
        else:
            await admin.alter_configs("broker", "", {RATE: rate})


def test_moves_under_load_and_a_kill_keep_all_that_was_acknowledged(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path)
    second = str(second_of(tmp_path, 1))
    first = str(layout.data_directory(tmp_path, 1).resolve())
    acknowledged: list[int] = []

    async def story() -> None:
        ends = asyncio.Event()
        loading = asyncio.ensure_future(load(cluster.bootstrap, acknowledged, ends))
        try:
            await move_all(cluster.bootstrap, 1, second)
            await until_all_are_in(cluster.bootstrap, 1, second)

            await set_rate(cluster.bootstrap, 1)  # so that the next move is not over at once
            await move_all(cluster.bootstrap, 1, first)
            await asyncio.to_thread(cluster.kill, 1)
            assert [*Path(first).glob(f"{TOPIC}-*-future")], "it was in the middle"
            await asyncio.to_thread(cluster.start_node, 1)
            await set_rate(cluster.bootstrap, None)
            await until_all_are_in(cluster.bootstrap, 1, first)
        finally:
            ends.set()
            await loading

    with cluster:
        asyncio.run(create(cluster.bootstrap))
        asyncio.run(produce(cluster.bootstrap, range(600)))
        asyncio.run(story())
        assert partitions_in(second_of(tmp_path, 1)) == set()
        assert acknowledged
        assert sorted(asyncio.run(read_all(cluster.bootstrap, TOPIC))) == [
            *range(600),
            *acknowledged,
        ]

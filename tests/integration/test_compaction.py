"""Real nodes compact a topic while it is used: every client finds the newest value of each key."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from quorumlog.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from quorumlog.cluster import LocalCluster

pytestmark = pytest.mark.integration

TOPIC: Final = "states"
PLACE: Final = TopicPartition(TOPIC, 0)
RECORDS: Final = 6000
KEYS: Final = 100
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
Shown = list[tuple[int, bytes, bytes | None]]  # offset, key, value


async def write(bootstrap: str) -> dict[bytes, bytes | None]:
    """Write all keys again and again, with tombstones; return the newest value of each."""
    newest: dict[bytes, bytes | None] = {}
    sent = []
    async with Producer(bootstrap, acks="all") as producer:
        for number in range(RECORDS):
            key = b"%d" % (number * 7 % KEYS)
            newest[key] = None if number % 1009 == 13 else b"%d:" % number + bytes(1000)
            sent.append(await producer.send(TOPIC, newest[key], key=key, partition=0))
        await asyncio.gather(*sent)
    return newest


async def read(bootstrap: str) -> Shown:
    shown: Shown = []
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([PLACE])
        async with asyncio.timeout(20):
            while not shown or shown[-1][0] < RECORDS - 1:
                for records in (await consumer.poll(200)).values():
                    shown += [(one.offset, one.key or b"", one.value) for one in records]
    return shown


def read_by_librdkafka(bootstrap: str) -> Shown:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    shown: Shown = []
    try:
        while not shown or shown[-1][0] < RECORDS - 1:
            record = consumer.poll(20)
            assert record is not None
            assert record.error() is None
            shown.append((record.offset() or 0, bytes(record.key() or b""), record.value()))
    finally:
        consumer.close()
    return shown


async def until_small(directories: Iterable[Path]) -> None:
    """Return when no log has more than its active segment and what each key needs."""
    async with asyncio.timeout(30):
        for directory in directories:
            while sum(file.stat().st_size for file in directory.glob("*.log")) > 5 << 19:
                await asyncio.sleep(0.1)


def require_newest(shown: Shown, newest: dict[bytes, bytes | None]) -> None:
    offsets = [offset for offset, _, _ in shown]
    assert offsets == sorted({*offsets})
    assert len(offsets) < RECORDS / 2
    found = {key: value for _, key, value in shown}
    assert {key: found.get(key) for key in newest} == newest


async def test_a_compacted_topic_keeps_the_newest_value_of_each_key(tmp_path: Path) -> None:
    settings = {"log.cleaner.backoff.ms": "200"}
    with LocalCluster(tmp_path / "cluster", nodes=3, port=0, config=settings) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic(TOPIC, 1, 3, configs=CONFIGS)])
            newest = await write(cluster.bootstrap)
            logs = {
                node: tmp_path / "cluster" / f"node-{node}" / "data" / "states-0"
                for node in (1, 2, 3)
            }
            await until_small(logs.values())
            require_newest(await read(cluster.bootstrap), newest)
            require_newest(await asyncio.to_thread(read_by_librdkafka, cluster.bootstrap), newest)
            leader = (await admin.describe_topics([TOPIC]))[TOPIC].partitions[0].leader_id
        follower = next(node for node in logs if node != leader)
        cluster.kill(follower)
        cluster.start_node(follower)  # it takes the leader's log from where its own ends
        cluster.kill(leader)
        require_newest(await read(cluster.bootstrap), newest)

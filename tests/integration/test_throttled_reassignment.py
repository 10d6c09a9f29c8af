"""A partition moves to another real node no faster than its throttle says; then nothing is left."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from quorumlog.client import Admin, NewTopic, Producer, TopicPartition
from quorumlog.cluster import LocalCluster
from tests.integration.test_reassignment import reassign

pytestmark = pytest.mark.integration
AT: Final = TopicPartition("moves", 0)
TARGETS: Final = (2, 3)
RATE: Final = 200_000
CREDIT_S: Final = 1.0  # what was not used for so long may be used at once
ANSWER: Final = 20_000  # an answer and what is written beside the records
RECORD: Final = bytes(1_000)
RECORDS: Final = 1_000
ALREADY: Final = "7"  # a rate that was set before, for all brokers


class Sample(NamedTuple):
    """How many bytes a node held at some time between two."""

    before_s: float
    held: int
    after_s: float


async def watch(directory: Path, move: Callable[[], Awaitable[object]]) -> list[Sample]:
    """Look at what is in the directory until it has moved there."""
    moving = asyncio.ensure_future(move())
    samples = []
    while not moving.done():
        before_s = time.monotonic()
        held = sum(path.stat().st_size for path in directory.glob("**/moves-0/*.log"))
        samples.append(Sample(before_s, held, time.monotonic()))
        await asyncio.sleep(0.02)
    await moving
    return samples


def check_rate(samples: list[Sample]) -> None:
    """Between any two looks no more came than the rate, its credit and one answer allow."""
    assert samples[-1].held - samples[0].held > 3 * RATE, "it was seen on its way"
    for first, last in itertools.combinations(samples, 2):
        most = RATE * (last.after_s - first.before_s + CREDIT_S) + ANSWER
        assert last.held - first.held <= most


async def fill(bootstrap: str) -> None:
    async with Producer(bootstrap, acks="all", batch_size=8_000) as producer:
        sent = [await producer.send("moves", RECORD, partition=0) for _ in range(RECORDS)]
        await asyncio.gather(*sent)


async def until_moved(admin: Admin) -> None:
    async with asyncio.timeout(60):
        while True:  # the answer may be of a broker that has not heard of the move
            [view] = (await admin.describe_topics(["moves"]))["moves"].partitions.values()
            if (view.replicas, {*view.isr}) == (TARGETS, {*TARGETS}):
                return
            await asyncio.sleep(0.05)


async def set_rates(admin: Admin) -> dict[str, str | None]:
    found = await admin.describe_configs("broker", "")
    return {name: one.value for name, one in found.items() if "throttled" in name}


@pytest.mark.parametrize("side", ["leader", "follower", "both"])
async def test_a_throttled_move_keeps_to_its_rate(tmp_path: Path, side: str) -> None:
    config = {"replica.fetch.max.bytes": "10000"}
    with LocalCluster(tmp_path / "cluster", nodes=3, port=0, config=config) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("moves", assignments={0: [1, 2]})])
            await fill(cluster.bootstrap)
            rate = {"leader.replication.throttled.rate": ALREADY}
            await admin.alter_configs("broker", "", rate)

            async def by_settings() -> None:
                names = [f"{side}.replication.throttled.{what}" for what in ("rate", "replicas")]
                await admin.alter_configs("broker", "", {names[0]: RATE})
                await admin.alter_configs("topic", "moves", {names[1]: "*"})
                await admin.alter_partition_reassignments({AT: TARGETS})
                await until_moved(admin)

            async def by_command() -> None:
                words = ("--brokers", "2,3", "--throttle", str(RATE))
                assert (await reassign(cluster.bootstrap, *words))["completed"] is True

            move = by_command if side == "both" else by_settings
            check_rate(await watch(tmp_path / "cluster/node-3", move))
            await until_moved(admin)
            if side == "both":
                assert await set_rates(admin) == rate

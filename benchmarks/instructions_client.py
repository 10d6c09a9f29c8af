"""Counted cases of our client. Its server is one node in another process, which is not counted."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks import load
from benchmarks.counted import STEPS_MAX, WARM_UP, Case, repeat
from benchmarks.instructions_broker import batch_of, small
from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import NewTopic, TopicPartition
from quorumlog.invariants import require

FETCH_BYTES: Final = 20_000  # one batch
RECORDS: Final = 320  # of a step: two batches of 16 KiB
SENT, POLLED, WIDE = "sent", "polled", "wide"
PARTITIONS: Final = 200  # of WIDE; only the first has records
_VALUE: Final = bytes(100)


@contextmanager
def _node(directory: Path) -> Iterator[None]:
    """Run a node, and write the records that are polled."""
    batch = batch_of(RECORDS // 2, small)
    with LocalCluster(directory, nodes=1) as cluster:
        asyncio.run(_create_topics(cluster.bootstrap, {SENT: 1, POLLED: 1}))
        load.send_batches(cluster.bootstrap, POLLED, [batch] * 16, rounds=STEPS_MAX // 8)
        yield


@contextmanager
def _wide_node(directory: Path) -> Iterator[None]:
    """Run a node with a topic of many partitions."""
    batch = batch_of(RECORDS // 2, small)
    with LocalCluster(directory, nodes=1) as cluster:
        asyncio.run(_create_topics(cluster.bootstrap, {WIDE: PARTITIONS}))
        load.send_batches(cluster.bootstrap, WIDE, [batch] * 16, rounds=STEPS_MAX // 8)
        yield


async def _create_topics(bootstrap: str, counts: Mapping[str, int]) -> None:
    topics = [
        NewTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in counts.items()
    ]
    async with Admin(bootstrap) as admin:
        await admin.create_topics(topics)


async def _produce(directory: Path, steps: int) -> bool:
    """Send records of 100 B as fast as it goes, and wait for their acknowledgements."""
    producer = Producer(LocalCluster.open(directory).bootstrap, linger_ms=60_000)
    await producer.start()

    async def send(at: int) -> None:
        sent = [await producer.send(SENT, _VALUE) for _ in range(RECORDS)]
        await producer.flush()
        require((await sent[-1]).offset == (at + 1) * RECORDS - 1, "every record has its offset")

    await repeat(send, steps)
    return True


async def _poll(directory: Path, steps: int) -> bool:
    """Poll records of 100 B with keys."""
    consumer = Consumer(LocalCluster.open(directory).bootstrap, enable_auto_commit=False)
    await consumer.start()
    at = TopicPartition(POLLED, 0)
    consumer.assign([at])
    consumer.seek_to_beginning(at)

    async def poll(_: int) -> None:
        left = RECORDS
        while left:
            left -= sum(map(len, (await consumer.poll(60_000, max_records=left)).values()))

    await repeat(poll, steps)
    return await consumer.position(at) == (WARM_UP + steps) * RECORDS


async def _fetch_wide(directory: Path, steps: int) -> bool:
    """Read many partitions; each fetch returns one batch of one of them."""
    consumer = Consumer(
        LocalCluster.open(directory).bootstrap,
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    consumer.assign([TopicPartition(WIDE, index) for index in range(PARTITIONS)])

    async def poll(_: int) -> None:
        left = RECORDS // 2
        while left:
            left -= sum(map(len, (await consumer.poll(60_000, max_records=left)).values()))

    await repeat(poll, steps)
    return await consumer.position(TopicPartition(WIDE, 0)) == (WARM_UP + steps) * RECORDS // 2


CASES: Final = (
    Case(
        name="our client: send a record of 100 B",
        run=_produce,
        around=_node,
        unit="record",
        per_step=RECORDS,
    ),
    Case(
        name="our client: poll a record of 100 B",
        run=_poll,
        around=_node,
        unit="record",
        per_step=RECORDS,
    ),
    Case(
        name="our client: fetch and poll a batch, with 200 partitions assigned",
        run=_fetch_wide,
        around=_wide_node,
        unit="fetch",
    ),
)

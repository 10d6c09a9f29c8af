"""One write to each of the two replicated logs of a cluster: docs/majority-or-isr.md.

`python -m benchmarks.majority_or_isr`. The metadata log is committed by a majority of its voters,
with fsync; a partition with acks=all by its whole ISR, without. Both are written one record at a
time: all nodes up, then while a follower of both is paused, then after it was dropped.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from benchmarks.load import percentile
from benchmarks.measure import Figure, Table
from quorumlog import Admin, LocalCluster, Producer
from quorumlog.client import NewTopic

_TOPIC: Final = "both"
_WRITES: Final = 200
_WAIT_S: Final = 30.0
Write = Callable[[int], Awaitable[object]]


async def _times_ms(write: Write, count: int = _WRITES) -> list[float]:
    """Return the sorted durations of writes that follow each other."""
    times = []
    for number in range(count):
        begin_s = time.perf_counter()
        await write(number)
        times.append((time.perf_counter() - begin_s) * 1000)
    return sorted(times)


async def _add(table: Table, log: str, state: str, write: Write) -> None:
    times = await _times_ms(write)
    name = f"{log}, {state}: one write"
    table.add(Figure(name=f"{name}, median", value=percentile(times, 0.5), unit="ms"))
    table.add(Figure(name="the same, 99th percentile", value=percentile(times, 0.99), unit="ms"))


async def _measure(table: Table, cluster: LocalCluster) -> None:
    admin, producer = Admin(cluster.bootstrap), Producer(cluster.bootstrap, acks="all")
    async with admin, producer:
        await admin.create_topics([NewTopic(_TOPIC, 1, 3)])
        leader = (await admin.describe_topics([_TOPIC]))[_TOPIC].partitions[0].leader_id
        active = (await admin.describe_quorum()).leader_id
        victim = next(node.id for node in cluster.nodes if node.id not in {leader, active})

        async def to_metadata(number: int) -> None:
            """Commit one Config record; the request goes to the active controller's broker."""
            values = {"leader.replication.throttled.rate": str(10**12 + number)}
            await admin.alter_configs("broker", str(active), values)

        async def to_partition(number: int) -> None:
            await producer.send_and_wait(_TOPIC, b"%d" % number)

        logs = {"metadata log (majority)": to_metadata, "partition (ISR)": to_partition}
        for log, write in logs.items():
            await _times_ms(write, 50)  # connections, imports
            await _add(table, log, "all nodes up", write)
        for log, write in logs.items():
            await asyncio.to_thread(cluster.settled, timeout_s=_WAIT_S)
            cluster.pause(victim)
            try:
                longest_ms = (await _times_ms(write, 30))[-1]
                name = f"{log}, a follower pauses: longest write"
                table.add(Figure(name=name, value=longest_ms, unit="ms"))
                await asyncio.to_thread(cluster.wait, topic=_TOPIC, isr=2, timeout_s=_WAIT_S)
                await _add(table, log, "without it", write)
            finally:
                cluster.resume(victim)


def majority_or_isr(table: Table) -> None:
    """Measure both logs of one cluster of three nodes."""
    with LocalCluster() as cluster:
        asyncio.run(_measure(table, cluster))


if __name__ == "__main__":
    majority_or_isr(Table())

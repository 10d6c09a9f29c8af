"""How long producers get no acknowledgement when a node dies, measured by the producers.

One producer per partition sends as fast as it is answered, with acks=all. The gap of a partition
is the longest time between two of its acknowledgements around the fault.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from benchmarks.beside_kafka import Cluster
from quorumlog import LocalCluster, Producer

_BEFORE_S = 1.0
_AFTER_S = 4.0
_PATIENCE_S = 60.0
_RECORD = bytes(100)


async def _acknowledge(bootstrap: str, topic: str, partition: int, times: list[float]) -> None:
    # A paused broker never answers: give up on a request after a second, and ask again.
    async with Producer(
        bootstrap_servers=bootstrap, linger_ms=0, request_timeout_ms=1_000
    ) as producer:
        while True:
            await producer.send_and_wait(topic, _RECORD, partition=partition)
            times.append(time.monotonic())
            await asyncio.sleep(0.002)


async def longest_gap_s(
    bootstrap: str,
    topic: str,
    partitions: int,
    fault: Callable[[], Awaitable[None]],
    after_s: float,
) -> float:
    """Return the longest gap over all partitions, seconds, from just before the fault on."""
    acknowledged: list[list[float]] = [[] for _ in range(partitions)]
    tasks = [
        asyncio.create_task(_acknowledge(bootstrap, topic, partition, acknowledged[partition]))
        for partition in range(partitions)
    ]
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not all(acknowledged):  # noqa: ASYNC110 - a gap begins with an acknowledgement
                await asyncio.sleep(0.01)
        await asyncio.sleep(_BEFORE_S)
        fault_s = time.monotonic()
        await fault()
        await asyncio.sleep(after_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    end_s = time.monotonic()
    gaps = []
    for times in acknowledged:
        first = max((at for at, moment in enumerate(times) if moment < fault_s), default=0)
        marks = times[first:]
        marks.append(end_s)  # if nothing was acknowledged any more, the gap is still open
        gaps.append(max(later - sooner for sooner, later in itertools.pairwise(marks)))
    return max(gaps)


def leader_other_than_controller(cluster: LocalCluster, topic: str) -> int:
    """Return a node that leads a partition of the topic and is not the active controller."""
    status = cluster.status()
    leaders = [int(partition["leader"]) for partition in status["topics"][topic]["partitions"]]
    return next(leader for leader in leaders if leader != status["controller_id"])


async def killed_s(
    cluster: Cluster, topic: str, partitions: int, node_id: int, after_s: float = _AFTER_S
) -> float:
    """SIGKILL a node, measure, start it again."""

    async def kill() -> None:
        await asyncio.to_thread(cluster.kill, node_id)

    gap_s = await longest_gap_s(cluster.bootstrap, topic, partitions, kill, after_s)
    await asyncio.to_thread(cluster.start_node, node_id)
    return gap_s


async def paused_s(
    cluster: LocalCluster, topic: str, partitions: int, node_id: int, session_s: float
) -> float:
    """SIGSTOP a node, measure, let it go on."""

    async def pause() -> None:
        await asyncio.to_thread(cluster.pause, node_id)

    try:
        return await longest_gap_s(
            cluster.bootstrap, topic, partitions, pause, session_s + _AFTER_S
        )
    finally:
        await asyncio.to_thread(cluster.resume, node_id)

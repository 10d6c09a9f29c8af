"""The measurements that run alike on our cluster and on Apache Kafka (benchmarks/beside_kafka.py).

Beside a rate stands the CPU of all nodes for one of its units. A client that is slower than the
servers shows only itself: of such loads the CPU of the servers for a record is the figure.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks import failover, load
from benchmarks.beside_kafka import Cluster, Measure, Opened, Pace, node_ids, nodes_cpu_s
from benchmarks.measure import Cost, Figure, cpu_seconds, resident_mb
from quorumlog import Admin
from quorumlog.client import KafkaError, NewTopic

PARTITIONS: Final = 8
PATIENCE_S: Final = 60.0
_RECORD_BYTES: Final = 1024
_CLIENT_RECORDS: Final = 20_000  # for each second
_IDLE_S: Final = 8.0
_GAP_S: Final = 20.0  # after a kill: Apache Kafka's session is 9 s
_numbers: Final = count()


def _patiently(call: Callable[[], Any]) -> Any:
    """Repeat a call until it succeeds: a cluster gets ready. Raises its last error."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (OSError, KafkaError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def _by_admin(cluster: Cluster, call: Callable[[Admin], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Admin(cluster.bootstrap) as admin:
            return await call(admin)

    return _patiently(lambda: asyncio.run(run()))


def _create_topic(cluster: Cluster, partitions: int = PARTITIONS) -> str:
    """Create a new topic with a replica on each node; return once it acknowledges."""
    name = f"bench-{next(_numbers)}"
    replicas = len(node_ids(cluster))
    topic = NewTopic(name, partitions, replicas, configs={"file.delete.delay.ms": 1000})
    _by_admin(cluster, lambda admin: admin.create_topics([topic]))
    _patiently(partial(_touch, cluster, name))
    return name


def _touch(cluster: Cluster, topic: str) -> None:
    load.throughput(cluster.bootstrap, topic, batch_bytes=1024, acks=-1, window=1, seconds=0.01)


@contextmanager
def _topic(cluster: Cluster, partitions: int = PARTITIONS) -> Iterator[str]:
    """Use a topic, and delete it: a disk holds seconds of load, not minutes."""
    name = _create_topic(cluster, partitions)
    yield name
    _by_admin(cluster, lambda admin: admin.delete_topics([name]))


@contextmanager
def _costing(cluster: Cluster, unit: str) -> Iterator[Callable[[int], Cost]]:
    """Measure the CPU of all nodes; yield how to divide it, once the block has ended."""
    before_s = nodes_cpu_s(cluster)
    used_s: list[float] = []
    yield lambda units: Cost(used_s[0] * 1e6 / max(units, 1), unit)
    used_s.append(nodes_cpu_s(cluster) - before_s)


# --- Loads ---


def produce(
    acks: int, batch_kib: int, goal: float | None = None, partitions: int = PARTITIONS
) -> Measure:
    """Return a measurement of eight requests in flight for each partition."""

    def measure(cluster: Cluster, pace: Pace) -> list[Figure]:
        with _topic(cluster, partitions) as topic, _costing(cluster, "batch") as cost_of:
            seen = load.throughput(
                cluster.bootstrap,
                topic,
                batch_bytes=batch_kib * 1024,
                acks=acks,
                seconds=pace.seconds,
            )
        name = f"{_replicated(cluster, acks)}, {batch_kib} KiB batches"
        if partitions != PARTITIONS:
            name += f", {partitions} partitions"
        cost = cost_of(seen.answers)
        rate = Figure(
            name=name, value=seen.mb_per_s, unit="MB/s", goal=goal, at_most=False, cost=cost
        )
        return [rate]

    return measure


def _replicated(cluster: Cluster, acks: int) -> str:
    return f"acks={'all' if acks < 0 else acks}, RF {len(node_ids(cluster))}"


def fetch(cluster: Cluster, pace: Pace) -> list[Figure]:
    """Read the same logs again and again: no fetch waits at their end."""
    with _topic(cluster) as topic:
        for _ in range(2):
            load.throughput(
                cluster.bootstrap, topic, batch_bytes=16_384, acks=-1, window=128, seconds=0.1
            )
        with _costing(cluster, "fetch") as cost_of:
            seen = load.fetches(cluster.bootstrap, topic, seconds=pace.seconds)
    name = f"fetch 1 MiB, RF {len(node_ids(cluster))}"
    cost = cost_of(seen.answers)
    return [Figure(name=name, value=seen.mb_per_s, unit="MB/s", at_most=False, cost=cost)]


def latency(rate_per_s: int, *, after_load: bool = False) -> Measure:
    """Return a measurement of an open loop, from the time a request was due.

    after_load: straight after seconds of large batches, which the disks still write.
    """

    def measure(cluster: Cluster, pace: Pace) -> list[Figure]:
        if after_load:
            produce(-1, 128)(cluster, pace)
        with _topic(cluster) as topic, _costing(cluster, "batch") as cost_of:
            seen_ms = load.latencies_ms(
                cluster.bootstrap, topic, rate_per_s=rate_per_s, seconds=2 * pace.seconds
            )
        name = f"{_replicated(cluster, -1)}, {rate_per_s}/s" + ", after load" * after_load
        cost = cost_of(len(seen_ms))
        return [
            Figure(
                name=f"{name}: p{percent}",
                value=load.percentile(seen_ms, percent / 100),
                unit="ms",
                goal=goal,
                cost=cost,
            )
            for percent, goal in ((50, None), (99, 5.0))
        ]

    return measure


def confluent(cluster: Cluster, pace: Pace) -> list[Figure]:
    """Produce and consume records of 1 KiB with confluent-kafka, the most used client but Java's.

    Its rate is the client's, on any server.
    """
    count = int(_CLIENT_RECORDS * pace.seconds)
    with _topic(cluster) as topic:
        with _costing(cluster, "record") as produced:
            _produce_by_confluent(cluster, topic, count)
        with _costing(cluster, "record") as consumed:
            _consume_by_confluent(cluster, topic, count)
    name = "confluent-kafka, 1 KiB records: CPU of all nodes for one"
    made, read = produced(count).cpu_us, consumed(count).cpu_us
    replicated = _replicated(cluster, -1)
    return [
        Figure(name=f"{name} produced, {replicated}", value=made, unit="us"),
        Figure(name=f"{name} consumed", value=read, unit="us"),
    ]


def _produce_by_confluent(cluster: Cluster, topic: str, count: int) -> None:
    import confluent_kafka

    failures: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    settings: dict[str, Any] = {"linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", **settings}
    )
    value = os.urandom(_RECORD_BYTES)
    for index in range(count):
        producer.produce(topic, value, partition=index % PARTITIONS, on_delivery=delivered)
        if index % 1000 == 0:
            producer.poll(0)
    if producer.flush(PATIENCE_S) or failures:
        raise RuntimeError(f"records failed: {failures[:1]}")


def _consume_by_confluent(cluster: Cluster, topic: str, count: int) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "enable.auto.commit": False}
    )
    beginning = confluent_kafka.OFFSET_BEGINNING
    consumer.assign(
        [confluent_kafka.TopicPartition(topic, at, beginning) for at in range(PARTITIONS)]
    )
    left, deadline_s = count, time.monotonic() + PATIENCE_S
    while left > 0:
        left -= len(consumer.consume(10_000, timeout=0.1))
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{left} of {count} records are missing")
    consumer.close()


THREE_NODES: Final = (
    *(produce(-1, 16, goal=40.0), produce(-1, 128), produce(1, 16), produce(1, 128)),
    *(fetch, latency(200), latency(1000), latency(200, after_load=True), confluent),
)
ONE_NODE: Final = (produce(1, 16), produce(1, 128), produce(1, 16, partitions=100), fetch)


# --- Starts and kills ---


def starts(opened: Opened, nodes: int, _pace: Pace) -> list[Figure]:
    """Start a new cluster, let it idle, kill a node that leads, then all, and start it again."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as scratch:
        started_s = time.monotonic()
        cluster = opened(Path(scratch) / "cluster", nodes)
        try:
            topic = _create_topic(cluster)
            first_s = time.monotonic() - started_s
            idle = _idle(cluster)
            gap_s = asyncio.run(_killed_s(cluster, topic))
            _patiently(partial(_touch, cluster, topic))
            cluster.kill(*node_ids(cluster))
            killed_s = time.monotonic()
            cluster = opened(Path(scratch) / "cluster", nodes)
            _patiently(partial(_touch, cluster, topic))
            again_s = time.monotonic() - killed_s
        finally:
            cluster.stop()
    name = f"{nodes} nodes: command -> acknowledged on every partition"
    gap = "kill -9 of a leader -> acknowledged on every partition"
    return [
        Figure(name=name, value=first_s, unit="s", goal=2.0),
        *idle,
        Figure(name=gap, value=gap_s, unit="s", goal=1.0),
        Figure(
            name="the same as at first, after kill -9 of all", value=again_s, unit="s", goal=3.0
        ),
    ]


def _idle(cluster: Cluster) -> list[Figure]:
    """Measure the memory and CPU of nodes that get no requests."""
    pids = [pid for node_id in node_ids(cluster) if (pid := cluster.pid(node_id)) is not None]
    used_s = [cpu_seconds(pid) for pid in pids]
    time.sleep(_IDLE_S)
    shares = [
        (cpu_seconds(pid) - before_s) / _IDLE_S * 100
        for pid, before_s in zip(pids, used_s, strict=True)
    ]
    memory, cpu = "idle: resident memory of the largest node", "idle: CPU of the busiest node"
    return [
        Figure(name=memory, value=max(map(resident_mb, pids)), unit="MB", goal=55),
        Figure(name=f"{cpu}, share of a core", value=max(shares), unit="%", goal=2.0),
    ]


async def _killed_s(cluster: Cluster, topic: str) -> float:
    """Kill a leader that is not the active controller."""
    async with Admin(cluster.bootstrap) as admin:
        controller = (await admin.describe_quorum()).leader_id
    victim = next(one for one in node_ids(cluster) if one != controller)
    return await failover.killed_s(cluster, topic, PARTITIONS, victim, after_s=_GAP_S)

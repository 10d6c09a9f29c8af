"""`make bench`: every figure that we promise, and its ratio to a peer, in one run on one machine.

Peers are optional, and skipped with a remark: see benchmarks/peers.py.
`--only start,failover,...` picks parts; `--out FILE` keeps the table as Markdown.
"""

import argparse
import asyncio
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import quorumlog
from benchmarks import failover, load
from benchmarks.admission import admission
from benchmarks.clients import clients
from benchmarks.compaction import compaction
from benchmarks.durable import durable
from benchmarks.groups import groups
from benchmarks.history_checks import history_checks
from benchmarks.many_partitions import TOPICS
from benchmarks.many_partitions import many_partitions as all_many_partitions
from benchmarks.measure import Figure, Table, cpu_seconds, resident_mb
from benchmarks.metadata import metadata as metadata_commits
from benchmarks.peers import apache_kafka, bare_mb_per_s
from benchmarks.recovery import recovery
from benchmarks.simulation import simulation
from benchmarks.slow_disk import slow_disk
from benchmarks.transactions import transactions
from quorumlog import Admin, LocalCluster, Producer
from quorumlog.client import NewTopic
from quorumlog.cluster import FAST_DEFAULTS

PARTITIONS: Final = 3
TOPIC: Final = "bench"
KAFKA_WARM_UP_S: Final = 60.0
PATIENCE_S: Final = 30.0
_IDLE_S: Final = 8.0
_SESSION_S: Final = int(FAST_DEFAULTS["broker.session.timeout.ms"]) / 1000
_PARTS: Final = (
    *("admission", "start", "idle", "failover", "metadata", "throughput", "latency", "sparse"),
    *("confluent", "durable", "recovery", "compaction", "slow_disk", "simulation"),
    *("transactions", "groups", "clients", "many_partitions", "history_checks", "bare", "kafka"),
)


def _up(directory: Path) -> float:
    """Run the command a user runs; return the seconds until it returned."""
    started_s = time.monotonic()
    command = [Path(sys.executable).with_name("quorumlog"), "up", "--dir", directory]
    subprocess.run(
        [*map(str, command), "--port", "0", "--detach", "--json"], check=True, capture_output=True
    )
    return time.monotonic() - started_s


def _create_topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> None:
    async def create() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics(
                [NewTopic(name=name, num_partitions=partitions, replication_factor=3)]
            )

    asyncio.run(create())


def start(table: Table, directory: Path) -> LocalCluster:
    """Command to ready: empty directories, then after a kill of everything."""
    table.add(
        Figure(
            name="3 nodes: command -> ready",
            value=_up(directory),
            unit="s",
            goal=1.5,
            apache_kafka="9.6 s",
        )
    )
    cluster = LocalCluster.open(directory)
    _create_topic(cluster.bootstrap, TOPIC)
    _first_acknowledged(cluster.bootstrap)
    load.throughput(cluster.bootstrap, TOPIC, batch_bytes=16_384, acks=-1, seconds=2.0)
    cluster.kill(*(node.id for node in cluster.nodes))
    table.add(
        Figure(
            name="3 nodes: ready after kill -9 of all",
            value=_up(directory),
            unit="s",
            goal=3.0,
            apache_kafka="15-16 s",
        )
    )
    return cluster


def idle(table: Table, cluster: LocalCluster) -> None:
    """Memory and CPU of nodes that get no requests."""
    pids = [pid for node in cluster.nodes if (pid := cluster.pid(node.id)) is not None]
    used_s = [cpu_seconds(pid) for pid in pids]
    time.sleep(_IDLE_S)
    shares = [
        (cpu_seconds(pid) - before_s) / _IDLE_S * 100
        for pid, before_s in zip(pids, used_s, strict=True)
    ]
    table.add(
        Figure(
            name="idle: resident memory of the largest node",
            value=max(map(resident_mb, pids)),
            unit="MB",
            goal=55,
            apache_kafka="310-400 MB",
        )
    )
    table.add(
        Figure(
            name="idle: CPU of the busiest node, share of a core",
            value=max(shares),
            unit="%",
            goal=2.0,
            apache_kafka="3-7 %",
        )
    )


def fail_over(table: Table, cluster: LocalCluster) -> None:
    """How long producers get no acknowledgement."""
    leader = failover.leader_other_than_controller(cluster, TOPIC)
    gap_s = asyncio.run(failover.killed_s(cluster, TOPIC, PARTITIONS, leader))
    table.add(
        Figure(
            name="kill -9 of a leader -> acknowledged on every partition",
            value=gap_s,
            unit="s",
            goal=1.0,
            apache_kafka="7.7-11 s",
        )
    )
    controller = int(cluster.status()["controller_id"])
    gap_s = asyncio.run(failover.killed_s(cluster, TOPIC, PARTITIONS, controller))
    table.add(
        Figure(
            name="kill -9 of the active controller -> the same",
            value=gap_s,
            unit="s",
            goal=1.5,
            apache_kafka="11.2 s",
        )
    )
    _spread_leaders(cluster)
    leader = failover.leader_other_than_controller(cluster, TOPIC)
    gap_s = asyncio.run(failover.paused_s(cluster, TOPIC, PARTITIONS, leader, _SESSION_S))
    table.add(
        Figure(
            name=f"a paused leader (session {_SESSION_S:g} s) -> the same",
            value=gap_s,
            unit="s",
            goal=_SESSION_S + 1.5,
            apache_kafka="session 9 s: not measured",
        )
    )


def metadata(table: Table, cluster: LocalCluster) -> None:
    """Measure commits of metadata, and how soon they go on without the controller."""
    metadata_commits(table, cluster, TOPIC)


def _spread_leaders(cluster: LocalCluster) -> None:
    """Make a node lead that is not the controller: restart the controller if it leads all."""
    for _ in range(3):
        status = cluster.status()
        partitions = status["topics"][TOPIC]["partitions"]
        if any(partition["leader"] != status["controller_id"] for partition in partitions):
            return
        cluster.stop_node(int(status["controller_id"]))
        cluster.start_node(int(status["controller_id"]))


def throughput(table: Table, cluster: LocalCluster) -> None:
    """Acknowledged by all in-sync replicas."""
    for batch_bytes, goal, kafka in ((16_384, 40.0, "15-18 MB/s"), (131_072, None, "64-69 MB/s")):
        seen = max(
            load.throughput(cluster.bootstrap, TOPIC, batch_bytes=batch_bytes, acks=-1).mb_per_s
            for _ in range(3)
        )
        table.add(
            Figure(
                name=f"acks=all, RF 3, {batch_bytes // 1024} KiB batches (best of 3)",
                value=seen,
                unit="MB/s",
                goal=goal,
                at_most=False,
                apache_kafka=kafka,
            )
        )


def latency(table: Table, cluster: LocalCluster) -> None:
    """Open loop, from the time a request was due."""
    seen = load.latencies_ms(cluster.bootstrap, TOPIC, rate_per_s=200, seconds=10)
    table.add(
        Figure(
            name="acks=all, RF 3, 200/s: p50",
            value=load.percentile(seen, 0.5),
            unit="ms",
            apache_kafka="1.7 ms",
        )
    )
    table.add(
        Figure(
            name="acks=all, RF 3, 200/s: p99",
            value=load.percentile(seen, 0.99),
            unit="ms",
            goal=5.0,
            apache_kafka="3.3-5.3 ms",
        )
    )


async def _write_to_each(bootstrap: str, topic: str, partitions: int) -> None:
    async with Producer(bootstrap) as producer:
        sent = [await producer.send(topic, b"x", partition=index) for index in range(partitions)]
        await asyncio.gather(*sent)


def sparse(table: Table, cluster: LocalCluster) -> None:
    """Write to each of many partitions once in three seconds."""
    topic, partitions = "sparse", 90
    _create_topic(cluster.bootstrap, topic, partitions)
    asyncio.run(_write_to_each(cluster.bootstrap, topic, partitions))  # then all logs are open
    seen = load.latencies_ms(cluster.bootstrap, topic, rate_per_s=30, seconds=12)
    table.add(
        Figure(
            name="acks=all, RF 3, 90 partitions, each written every 3 s: p99",
            value=load.percentile(seen, 0.99),
            unit="ms",
            goal=50.0,
        )
    )


def confluent(table: Table, cluster: LocalCluster) -> None:
    """Measure the most used client outside the JVM, 1 KiB records."""
    try:
        import confluent_kafka
    except ImportError:
        table.note("confluent-kafka is not installed: skipped")
        return
    settings: dict[str, Any] = {
        "bootstrap.servers": cluster.bootstrap,
        "acks": "all",
        "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
    }
    failures: list[str] = []

    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    best, count, value = 0.0, 100_000, os.urandom(1024)
    for _ in range(3):
        producer = confluent_kafka.Producer(settings)
        started_s = time.perf_counter()
        for index in range(count):
            producer.produce(TOPIC, value, partition=index % PARTITIONS, on_delivery=delivered)
            if index % 1000 == 0:
                producer.poll(0)
        producer.flush(60)
        best = max(best, count * 1024 / (time.perf_counter() - started_s) / 1e6)
    if failures:
        raise RuntimeError(f"{len(failures)} records failed: {failures[0]}")
    table.add(
        Figure(
            name="confluent-kafka, 1 KiB records, acks=all, RF 3 (best of 3)",
            value=best,
            unit="MB/s",
            goal=40.0,
            at_most=False,
            apache_kafka="38-48 MB/s",
        )
    )


def _measured(table: Table, beginning: str) -> float | None:
    return next((f.value for f in table.figures if f.name.startswith(beginning)), None)


def bare(table: Table) -> None:
    """Measure the bare replicated path, and our share of it."""
    rate = bare_mb_per_s(table)
    if rate is None:
        return
    table.add(Figure(name="bare replicated path, 16 KiB", value=rate, unit="MB/s"))
    ours = _measured(table, "acks=all, RF 3, 16")
    if ours is not None:
        share = "our share of the bare replicated path, 16 KiB"
        table.add(Figure(name=share, value=ours / rate, unit="", goal=0.1, at_most=False))


def _first_acknowledged(bootstrap: str) -> None:
    """Return once a record is acknowledged: a new leader may not know its topic at once."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            load.throughput(bootstrap, TOPIC, batch_bytes=1024, acks=-1, window=1, seconds=0.1)
        except ConnectionError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


def kafka(table: Table) -> None:
    """Measure Apache Kafka the same way, warmed up for as long as a bench can wait."""
    started_s = time.monotonic()
    with apache_kafka(table) as bootstrap:
        if bootstrap is None:
            return
        _create_topic(bootstrap, TOPIC)
        _first_acknowledged(bootstrap)
        first_s = time.monotonic() - started_s
        table.add(
            Figure(name="Apache Kafka: command -> first acknowledged", value=first_s, unit="s")
        )
        load.throughput(bootstrap, TOPIC, batch_bytes=16_384, acks=-1, seconds=KAFKA_WARM_UP_S)
        rate = max(
            load.throughput(bootstrap, TOPIC, batch_bytes=16_384, acks=-1).mb_per_s
            for _ in range(3)
        )
    name = "Apache Kafka: acks=all, RF 3, 16 KiB batches (best of 3)"
    table.add(Figure(name=name, value=rate, unit="MB/s"))
    ours = _measured(table, "acks=all, RF 3, 16")
    if ours is not None:
        table.add(Figure(name="our rate as a multiple of it", value=ours / rate, unit="x"))


def many_partitions(table: Table) -> None:
    """Half of what `python -m benchmarks.many_partitions` measures: it takes a minute or two."""
    all_many_partitions(table, topics=TOPICS // 2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(_PARTS), help="parts: " + ",".join(_PARTS))
    parser.add_argument("--out", type=Path, help="write the table here, as Markdown")
    parser.add_argument("--json", type=Path, help="write the figures here, as JSON")
    given = parser.parse_args()
    parts = set(given.only.split(","))
    table = Table()
    print(f"load average before: {os.getloadavg()[0]:.1f} (quiet is below 1)")
    # As an installation does: with PYTHONDONTWRITEBYTECODE each process would compile all modules.
    compileall.compile_dir(quorumlog.__path__[0], quiet=1)
    if "admission" in parts:
        admission(table)
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as scratch:
        cluster = start(table, Path(scratch) / "cluster")
        try:
            for part in (idle, latency, throughput, confluent, sparse, metadata, fail_over):
                if part.__name__.replace("fail_over", "failover") in parts:
                    part(table, cluster)
        finally:
            cluster.stop()
    for alone in (
        *(durable, recovery, compaction, slow_disk, transactions, groups, clients),
        *(simulation, many_partitions, history_checks, bare, kafka),
    ):
        if alone.__name__ in parts:
            alone(table)
    if given.out:
        given.out.write_text(table.markdown() + "\n")
    if given.json:
        rows = [
            {
                "name": figure.name,
                "value": figure.value,
                "unit": figure.unit,
                "goal": figure.goal,
                "verdict": figure.verdict,
            }
            for figure in table.figures
        ]
        given.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

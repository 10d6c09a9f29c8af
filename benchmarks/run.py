"""`make bench`: every figure that we promise, and its ratio to a peer, in one run on one machine.

Peers are optional, and skipped with a remark: benchmarks/apache_kafka.py.
`--only three_nodes,failover,...` picks parts; `--out FILE` keeps the table as Markdown.
"""

import argparse
import asyncio
import compileall
import json
import os
from pathlib import Path
from typing import Final

import quorumlog
from benchmarks import failover, load, rows
from benchmarks.beside_kafka import SHORT, Pace, compare
from benchmarks.clients import clients
from benchmarks.compaction import compaction
from benchmarks.durable import durable
from benchmarks.groups import groups
from benchmarks.history_checks import history_checks
from benchmarks.many_partitions import TOPICS
from benchmarks.many_partitions import many_partitions as all_many_partitions
from benchmarks.measure import Figure, Table
from benchmarks.metadata import metadata as metadata_commits
from benchmarks.recovery import recovery
from benchmarks.simulation import simulation
from benchmarks.slow_disk import slow_disk
from benchmarks.tls import tls
from benchmarks.transactions import transactions
from quorumlog import Admin, LocalCluster, Producer
from quorumlog.client import NewTopic
from quorumlog.cluster import FAST_DEFAULTS

PARTITIONS: Final = 3
TOPIC: Final = "bench"
_SESSION_S: Final = int(FAST_DEFAULTS["broker.session.timeout.ms"]) / 1000
_PARTS: Final = (
    *("three_nodes", "one_node", "failover", "metadata", "sparse"),
    *("durable", "recovery", "compaction", "slow_disk", "simulation"),
    *("transactions", "groups", "clients", "many_partitions", "history_checks", "tls"),
)


def _create_topic(bootstrap: str, name: str, partitions: int = PARTITIONS) -> None:
    async def create() -> None:
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.create_topics(
                [NewTopic(name=name, num_partitions=partitions, replication_factor=3)]
            )

    asyncio.run(create())


def fail_over(table: Table, cluster: LocalCluster) -> None:
    """How long producers get no acknowledgement."""
    controller = int(cluster.status()["controller_id"])
    gap_s = asyncio.run(failover.killed_s(cluster, TOPIC, PARTITIONS, controller))
    name = "kill -9 of the active controller -> acknowledged on every partition"
    table.add(Figure(name=name, value=gap_s, unit="s", goal=1.5))
    _spread_leaders(cluster)
    leader = failover.leader_other_than_controller(cluster, TOPIC)
    gap_s = asyncio.run(failover.paused_s(cluster, TOPIC, PARTITIONS, leader, _SESSION_S))
    name = f"a paused leader (session {_SESSION_S:g} s) -> the same"
    table.add(Figure(name=name, value=gap_s, unit="s", goal=_SESSION_S + 1.5))


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


def many_partitions(table: Table) -> None:
    """Half of what `python -m benchmarks.many_partitions` measures: it takes a minute or two."""
    all_many_partitions(table, topics=TOPICS // 2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(_PARTS), help="parts: " + ",".join(_PARTS))
    parser.add_argument("--short", action="store_true", help="a second per figure: try it all")
    parser.add_argument("--out", type=Path, help="write the table here, as Markdown")
    parser.add_argument("--json", type=Path, help="write the figures here, as JSON")
    given = parser.parse_args()
    parts, pace = set(given.only.split(",")), SHORT if given.short else Pace()
    table = Table()
    print(f"load average before: {os.getloadavg()[0]:.1f} (quiet is below 1)")
    # As an installation does: with PYTHONDONTWRITEBYTECODE each process would compile all modules.
    compileall.compile_dir(quorumlog.__path__[0], quiet=1)
    if "three_nodes" in parts:
        compare(table, rows.THREE_NODES, pace, starts=rows.starts)
    if "one_node" in parts:
        compare(table, rows.ONE_NODE, pace, nodes=1)
    if "transactions" in parts:
        compare(table, [transactions], pace)
    shared = {sparse: "sparse", metadata: "metadata", fail_over: "failover"}
    chosen = [part for part, name in shared.items() if name in parts]
    if chosen:
        with LocalCluster() as cluster:
            _create_topic(cluster.bootstrap, TOPIC)
            for part in chosen:
                part(table, cluster)
    for alone in (
        *(durable, recovery, compaction, slow_disk, groups, clients, simulation),
        *(many_partitions, history_checks, tls),
    ):
        if alone.__name__ in parts:
            alone(table)
    if given.out:
        given.out.write_text(table.markdown() + "\n")
    if given.json:
        given.json.write_text(
            json.dumps([one.document() for one in table.figures], indent=2) + "\n"
        )


if __name__ == "__main__":
    main()

"""Many groups on one coordinator, and one group of many consumers.

`python -m benchmarks.groups [GROUPS]` measures only this. The members of the many groups are raw:
five of each group over few connections, so that the coordinator is what is measured. Wall times
suffer from whatever else runs on the machine, so the CPU time of the coordinator stands beside.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.load import percentile
from benchmarks.measure import Figure, Table, cpu_seconds
from quorumlog import LocalCluster
from quorumlog.client.settings import GroupProtocol
from tests.support.groups.raw_members import (
    ONE_COORDINATOR,
    Told,
    connections,
    coordinator_of,
    create_topics,
    grouped,
    is_settled,
    polling,
    running,
)

GROUPS: Final = 1_000
MEMBERS: Final = 5  # of each group
JOINERS: Final = 200  # of one group
DELAY_S: Final = 3.0
PATIENCE_S: Final = 120.0
STEADY_S: Final = 10.0
# A JoinGroup is answered when the others have joined, and holds up its connection until then.
_MEMBERS_PER_CONNECTION: Final = {"classic": 1, "consumer": 50}
_INTERVAL_S: Final = {"classic": 3.0, "consumer": 5.0}  # of heartbeats: as clients do
_CONFIG: Final = {**ONE_COORDINATOR, "group.initial.rebalance.delay.ms": str(int(DELAY_S * 1000))}

PROTOCOLS: Final[tuple[GroupProtocol, ...]] = ("classic", "consumer")


async def _settled_s(has_settled: Callable[[], bool]) -> float:
    started_s = time.perf_counter()
    async with asyncio.timeout(PATIENCE_S):
        while not has_settled():  # noqa: ASYNC110 - thousands of tasks change it
            await asyncio.sleep(0.05)
    return time.perf_counter() - started_s


async def many_groups(
    table: Table, cluster: LocalCluster, protocol: GroupProtocol, count: int
) -> None:
    """Let groups settle, and their members beat for a while."""
    names = [f"{protocol}-{index}" for index in range(count)]
    place = await coordinator_of(cluster.bootstrap, names[:1])
    [node_id] = [node.id for node in cluster.nodes if node.kafka.endswith(f":{place[1]}")]
    pid = cluster.pid(node_id) or 0
    told = Told()
    label = f"{count} groups of {MEMBERS}, {protocol}"
    per_connection = _MEMBERS_PER_CONNECTION[protocol]
    async with connections(place, -(-count * MEMBERS // per_connection)) as opened:
        groups = grouped(protocol, names, MEMBERS, opened, told)
        members = [member for group in groups for member in group]
        unsettled = [*groups]

        def has_settled() -> bool:
            unsettled[:] = [group for group in unsettled if not is_settled(group, MEMBERS)]
            return not unsettled

        used_s = cpu_seconds(pid)
        async with running(members, _INTERVAL_S[protocol]):
            settled_s = await _settled_s(has_settled)
            settled_cpu_s = cpu_seconds(pid) - used_s
            told.errors.clear()
            told.waits_ms.clear()
            used_s = cpu_seconds(pid)
            await asyncio.sleep(STEADY_S)
            share = (cpu_seconds(pid) - used_s) / STEADY_S * 100
        stable = sum(is_settled(group, MEMBERS) for group in groups)
    table.add(Figure(name=f"{label}: settled", value=settled_s, unit="s"))
    table.add(Figure(name="the same: CPU of the coordinator", value=settled_cpu_s, unit="s"))
    table.add(
        Figure(
            name=f"the same: stable after {STEADY_S:g} s of heartbeats",
            value=stable,
            unit="",
            goal=count,
            at_most=False,
        )
    )
    table.add(Figure(name="the same: CPU of the coordinator meanwhile", value=share, unit="%"))
    waits_ms = sorted(told.waits_ms)
    table.add(Figure(name="the same: heartbeat, p99", value=percentile(waits_ms, 0.99), unit="ms"))
    if told.errors:
        table.note(f"{label}: {dict(told.errors)}")


async def one_group(table: Table, bootstrap: str, protocol: GroupProtocol) -> None:
    """Let consumers of our client join one group at once, until each has its partition."""
    async with polling(bootstrap, protocol, JOINERS) as consumers:

        def has_settled() -> bool:
            return all(len(consumer.assignment()) == 1 for consumer in consumers)

        settled_s = await _settled_s(has_settled)
    delay_s = DELAY_S if protocol == "classic" else 0.0
    table.add(
        Figure(
            name=f"{JOINERS} consumers join one group, {protocol}: settled",
            value=settled_s,
            unit="s",
            goal=delay_s + 5.0,
        )
    )


def groups(table: Table, count: int = GROUPS) -> None:
    """Measure both protocols on three nodes of ours."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as scratch:
        cluster = LocalCluster(Path(scratch) / "cluster", config=_CONFIG)
        try:
            cluster.start()
            asyncio.run(create_topics(cluster.bootstrap, shared=MEMBERS, wide=JOINERS))
            for protocol in PROTOCOLS:
                asyncio.run(many_groups(table, cluster, protocol, count))
                asyncio.run(one_group(table, cluster.bootstrap, protocol))
        finally:
            cluster.stop()


if __name__ == "__main__":
    groups(Table(), *map(int, sys.argv[1:2]))

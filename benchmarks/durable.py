"""What acknowledgements cost that wait for the disk (`log.flush.acks`): a ratio, in one run.

`python -m benchmarks.durable` measures only this. Both clusters run at the same time, and take
turns: what else the machine does meets both.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from benchmarks import load
from benchmarks.measure import Figure, Table
from quorumlog import Admin, LocalCluster
from quorumlog.client import NewTopic

TOPIC: Final = "durable"
PARTITIONS: Final = 3
WINDOW: Final = 32  # requests in flight for each partition: a flush is shared by what waits
_ROUNDS: Final = 3
_SECONDS: Final = 4.0


async def _create(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=3)]
        )


def durable(table: Table) -> None:
    """Measure acks=all with three replicas, with and without the setting."""
    rates: dict[str, list[float]] = {"false": [], "true": []}
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as scratch:
        clusters = {
            value: LocalCluster(Path(scratch) / value, config={"log.flush.acks": value})
            for value in rates
        }
        try:
            for cluster in clusters.values():
                cluster.start()
                asyncio.run(_create(cluster.bootstrap))
            for _ in range(_ROUNDS):
                for value, cluster in clusters.items():
                    rates[value].append(_rate(cluster))
        finally:
            for cluster in clusters.values():
                cluster.stop()
    name = f"acks=all, RF 3, 16 KiB batches, {WINDOW} in flight for each of {PARTITIONS} partitions"
    without, flushed = max(rates["false"]), max(rates["true"])
    table.add(Figure(name=f"{name} (best of {_ROUNDS})", value=without, unit="MB/s"))
    table.add(Figure(name="the same, with log.flush.acks", value=flushed, unit="MB/s"))
    ratio = flushed / without
    table.add(
        Figure(
            name="with log.flush.acks, of without", value=ratio, unit="x", goal=0.3, at_most=False
        )
    )


def _rate(cluster: LocalCluster) -> float:
    measured = load.throughput(
        cluster.bootstrap, TOPIC, batch_bytes=16_384, acks=-1, window=WINDOW, seconds=_SECONDS
    )
    return measured.mb_per_s


if __name__ == "__main__":
    durable(Table())

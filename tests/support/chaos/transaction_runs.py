"""Runs of the workloads with transactions against the broker in memory."""

import asyncio
from pathlib import Path

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history import HistoryWriter
from quorumlog.chaos.verify import verify_history
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import Setup
from tests.support.chaos.transactions_in_memory import TOPIC, TransactionsInMemory
from tests.support.jumping_time import JumpingLoop

PARTITIONS = {"consume_transform_produce": 3}  # others have 2; a worker has two of three
TRANSACTIONS = 60
OPTIONS: dict[str, dict[str, int | float | str]] = {
    "txn_append": {"producers": 4, "consumers": 1},
    "txn_transfer": {"producers": 2, "rate": 60.0, "zombies": 0.1, "aborts": 0.15},
    "consume_transform_produce": {"rate": 60.0, "zombies": 0.1, "crashes": 0.08},
}
WORKLOADS = tuple(OPTIONS)


def judged(
    out: Path, workload: str, seed: int, fault: str = ""
) -> tuple[Verdict, TransactionsInMemory]:
    """Carry out a run, in virtual time; return the verdict and the broker."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        broker = runner.run(_carried_out(out, workload, seed, fault))
    return verify_history(out, engine="local", model=find_workload(workload).model), broker


async def _carried_out(out: Path, name: str, seed: int, fault: str) -> TransactionsInMemory:
    workload = find_workload(name)
    partitions = PARTITIONS.get(name, 2)
    broker = TransactionsInMemory(seed, 2 * partitions, fault)
    with HistoryWriter(out, meta={"model": workload.model}) as history:
        setup = Setup(
            driver=broker,
            bootstrap="b",
            topic=TOPIC,
            partitions=partitions,
            replication_factor=1,
            seed=seed,
            options=workload.read_options(OPTIONS[name]),
            history=history,
        )
        clients = workload.clients(setup)
        working = asyncio.Event()
        working.set()
        broker.after = (TRANSACTIONS, working)
        asyncio.get_running_loop().call_later(30.0, working.clear)  # a broken one may stand still
        await clients.work(working)
        await clients.final_reads(30.0)
    for task in [*broker.tasks]:
        task.cancel()
    return broker

"""A run of a workload against a driver in memory, and its verdict."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history import HistoryWriter
from quorumlog.chaos.verify import verify_history
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import Setup
from tests.support.chaos.log_in_memory import TOPIC


async def carried_out(
    out: Path,
    workload: str,
    driver: Any,
    stop_after: int,
    options: Mapping[str, float | str],
    *,
    partitions: int = 1,
    final_s: float = 10.0,
    reads_all: bool = True,
) -> Verdict:
    """Work until the driver has taken so many sends or changes, read at last, and check it all.

    `reads_all`: the final reads must come to their end within `final_s`.
    """
    kind = find_workload(workload)
    with HistoryWriter(out, meta={"model": kind.model, "workload": workload}) as history:
        setup = Setup(
            driver=driver,
            bootstrap="b",
            topic=TOPIC,
            partitions=partitions,
            replication_factor=1,
            seed=1,
            options=kind.read_options(options),
            history=history,
        )
        clients = kind.clients(setup)
        working = asyncio.Event()
        working.set()
        driver.stop_after = (stop_after, working.clear)
        await clients.work(working)
        assert await clients.final_reads(final_s) or not reads_all
    assert driver.open == 0
    return verify_history(out, engine="local", model=kind.model)

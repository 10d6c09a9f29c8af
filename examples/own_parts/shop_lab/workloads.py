"""A workload: every producer sends to one partition of its own, as a shop counts its stock."""

import asyncio
import random

from quorumlog.chaos.drivers.driver import SendFailed
from quorumlog.chaos.workloads.lanes import Lanes
from quorumlog.chaos.workloads.sends import attempt, record_of
from quorumlog.chaos.workloads.workload import LaneOptions, Workload, opened


class StockTakes(Lanes[LaneOptions]):
    """Its readers and final reads are those of every workload of lanes."""

    async def produce(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:
        """Send one record after the other; after an uncertain send, go on as a new process."""
        setup = self._setup
        gap_s = setup.options.producers / setup.options.rate
        for process in self.processes(lane):
            producer = await opened(setup.driver.producer(setup.bootstrap, f"shop-{process}"))
            if producer is not None:
                try:
                    while working.is_set():
                        await asyncio.sleep(rng.expovariate(1 / gap_s))
                        record = record_of(setup, self._next_value)
                        self._next_value += 1
                        partition = lane % setup.partitions
                        result = await attempt(setup, producer, process, partition, record)
                        if isinstance(result, SendFailed) and not result.definite:
                            break
                finally:
                    await producer.close()
            if not working.is_set():
                return


WORKLOAD = Workload(
    name="stock_takes",
    text="producers with a partition each send records, consumers read them",
    options=LaneOptions,
    clients=StockTakes,
    faults=("kill", "blink"),
)

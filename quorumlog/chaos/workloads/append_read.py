"""append_read: producers append globally unique values, consumers read every partition in order.

It proves or refutes that every acknowledged record is in the log: every value is sent once, so each
record that is read identifies its send. Producers use acks=all.
"""

import asyncio
import random
from typing import Final

from quorumlog.chaos.drivers.driver import DriverProducer
from quorumlog.chaos.workloads.lanes import Lanes
from quorumlog.chaos.workloads.sends import send_one
from quorumlog.chaos.workloads.workload import LaneOptions, Workload, opened


class AppendRead(Lanes[LaneOptions]):
    """The lanes of one run.

    Invariant: no value is sent twice, and no process number acts again after `info`.
    """

    async def produce(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:
        """Send one value after the other."""
        setup = self._setup
        loop = asyncio.get_running_loop()
        gap_s = setup.options.producers / setup.options.rate
        process = lane
        producer: DriverProducer | None = None
        due_s = loop.time()
        try:
            while working.is_set():
                due_s = max(due_s + rng.expovariate(1 / gap_s), loop.time())
                await asyncio.sleep(due_s - loop.time())
                if producer is None:
                    producer = await opened(setup.driver.producer(setup.bootstrap, f"p{process}"))
                    if producer is None:
                        continue
                value, self._next_value = self._next_value, self._next_value + 1
                partition = rng.randrange(setup.partitions)
                if not await send_one(setup, producer, process, partition, value):
                    process = self.next_process(process)
                    unsure, producer = producer, None
                    await unsure.close()
        finally:
            if producer is not None:
                await producer.close()


WORKLOAD: Final = Workload(
    name="append_read",
    text="producers append unique values (acks=all), consumers read every partition",
    options=LaneOptions,
    clients=AppendRead,
    dense=True,
)

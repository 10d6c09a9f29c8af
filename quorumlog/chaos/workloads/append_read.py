"""append_read: producers append globally unique values, consumers read every partition in order.

It proves or refutes "an acknowledged record is there": every value is sent once, so each record
that is read names the one send it came from. Producers ask for acks=all.
"""

import asyncio
import random
from typing import Final

from quorumlog.chaos.drivers.driver import DriverProducer, SendFailed
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.lanes import Lanes
from quorumlog.chaos.workloads.readers import key_of
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
                if not await self._send(producer, process, rng.randrange(setup.partitions)):
                    process = self.next_process(process)
                    unsure, producer = producer, None
                    await unsure.close()
        finally:
            if producer is not None:
                await producer.close()

    async def _send(self, producer: DriverProducer, process: int, partition: int) -> bool:
        """Send one value; return whether the process may act again."""
        topic, value = self._setup.topic, self._next_value
        self._next_value += 1
        message = Message(key_of(topic, partition), UNKNOWN_OFFSET, value)
        self._history.append(process, "invoke", "send", [message])
        try:
            offset = await (await producer.send(topic, partition, str(value).encode()))
        except SendFailed as error:
            outcome = "fail" if error.definite else "info"
            self._history.append(process, outcome, "send", [message], error=str(error))
            return error.definite
        self._history.append(process, "ok", "send", [message._replace(offset=offset)])
        return True


WORKLOAD: Final = Workload(
    name="append_read",
    text="producers append unique values (acks=all), consumers read every partition",
    options=LaneOptions,
    clients=AppendRead,
)

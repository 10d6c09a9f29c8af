"""append_read: producers append globally unique values, consumers read every partition in order.

It proves or refutes "an acknowledged record is there": every value is sent once, so each record
that is read names the one send it came from. Producers ask for acks=all.

One lane is one client with one operation at a time. A lane whose operation ends in `info` goes on
as a new process with a new client, because the old one may still be about to act (Jepsen).
"""

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.drivers import DriverProducer, SendFailed
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.readers import Readers, key_of
from quorumlog.chaos.workloads.workload import Setup, Workload, opened, option

_SEND_TIMEOUT_S: Final = 10.0  # the driver's own delivery timeout is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReadOptions:
    """How many clients there are, and how fast they send."""

    rate: float = option(600.0, "sends a second of all producers, while brokers answer")
    producers: int = option(8, "clients that send, one record at a time each")
    consumers: int = option(3, "clients that read every partition meanwhile", above=-1)
    final_readers: int = option(2, "clients that read everything at the end")


class AppendRead:
    """The lanes of one run.

    Invariant: no value is sent twice, and no process number acts again after `info`.
    """

    def __init__(self, setup: Setup[AppendReadOptions]) -> None:
        options = setup.options
        self._setup: Final = setup
        self._history: Final = setup.history
        self._readers: Final = Readers(
            setup,
            first_process=options.producers,
            consumers=options.consumers,
            final_readers=options.final_readers,
        )
        self._lanes: Final = options.producers + options.consumers + options.final_readers
        self._next_value = 0

    async def work(self, working: asyncio.Event) -> None:
        """Produce and consume until `working` is cleared."""
        async with asyncio.TaskGroup() as tasks:
            for lane in range(self._setup.options.producers):
                tasks.create_task(self._produce(lane, working))
            tasks.create_task(self._readers.work(working))

    async def _produce(self, lane: int, working: asyncio.Event) -> None:
        setup = self._setup
        rng = random.Random(f"producer {lane} of {setup.seed}")  # noqa: S311 - reproducible
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
                    process += self._lanes
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
            async with asyncio.timeout(_SEND_TIMEOUT_S):
                offset = await (await producer.send(topic, partition, str(value).encode()))
        except SendFailed as error:
            outcome = "fail" if error.definite else "info"
            self._history.append(process, outcome, "send", [message], error=str(error))
            return error.definite
        except TimeoutError:
            self._history.append(process, "info", "send", [message], error="no answer")
            return False
        self._history.append(process, "ok", "send", [message._replace(offset=offset)])
        return True

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every partition from its beginning to its end; return whether all readers did."""
        return await self._readers.final_reads(timeout_s)


WORKLOAD: Final = Workload(
    name="append_read",
    text="producers append unique values (acks=all), consumers read every partition",
    options=AppendReadOptions,
    clients=AppendRead,
)

"""idempotent_send: idempotent producers send in bursts, are killed in the middle, and come back.

It proves or refutes KIP-98's promise for one producer session: a record that the producer sends
again after a lost response is in the log at most once, and in the order of the sends. A killed
producer leaves attempts unresolved: such a value may be in the log, but never twice. Its
replacement is a new session with a new producer id, and sends none of the old values.

A burst is one operation: all its values are in flight at once. Now and then one is a flood of many
values: then several batches wait at a broker, which must still not acknowledge before it has
replicated them. Its `ok` has the offset of each
value; its `info` has offsets for the acknowledged values. The checker is `kafka_log`; a broken
implementation shows `duplicate`, `lost-write` or `int-nonmonotonic-send`.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.drivers.driver import DriverProducer, SendFailed
from quorumlog.chaos.workloads.lanes import Lanes
from quorumlog.chaos.workloads.readers import key_of
from quorumlog.chaos.workloads.sends import Outgoing, complete, record_of
from quorumlog.chaos.workloads.workload import LaneOptions, Workload, opened, option

_FLOOD_SHARE: Final = 0.1  # of the bursts
_KILLED_WITHIN_S: Final = 0.03  # of the start of a burst: while responses are due


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotentSendOptions(LaneOptions):
    """The number of clients, the rate of sends, and the lives of producers."""

    producers: int = option(6, "clients that send")
    consumers: int = option(2, "clients that read every partition during the run", above=-1)
    burst: int = option(10, "records that a producer has in flight at once")
    flood: int = option(50, "records in flight at once in one burst of ten")
    bursts_per_life: float = option(5.0, "bursts before a producer is killed, on average", above=1)


class IdempotentSend(Lanes[IdempotentSendOptions]):
    """The lanes of one run.

    Invariant: no value is sent twice by the workload, and no process acts again after its producer
    was killed or an operation ended in `info`.
    """

    async def produce(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:
        """Run producers one after the other."""
        setup, options = self._setup, self._setup.options
        mean_size = options.burst + _FLOOD_SHARE * (options.flood - options.burst)
        mean_gap_s = options.producers * mean_size / options.rate
        process = lane
        while working.is_set():
            producer = await opened(setup.driver.producer(setup.bootstrap, f"p{process}"))
            if producer is not None:
                try:
                    await self._live(producer, process, rng, mean_gap_s, working)
                finally:
                    await producer.close()
                process = self.next_process(process)

    async def _live(
        self,
        producer: DriverProducer,
        process: int,
        rng: random.Random,
        mean_gap_s: float,
        working: asyncio.Event,
    ) -> None:
        """Send bursts until the producer is killed, or the outcome of a burst is uncertain."""
        is_sure = True
        while is_sure and working.is_set():
            await asyncio.sleep(rng.expovariate(1 / mean_gap_s))
            if not working.is_set():
                break  # the readers have stopped
            is_killed = rng.random() < 1 / self._setup.options.bursts_per_life
            timeout_s = rng.random() * _KILLED_WITHIN_S if is_killed else None
            is_sure = await self._burst(producer, process, rng, timeout_s) and not is_killed

    async def _burst(
        self, producer: DriverProducer, process: int, rng: random.Random, timeout_s: float | None
    ) -> bool:
        """Send a burst, and wait for at most `timeout_s`; return whether its outcome is certain."""
        topic = self._setup.topic
        options = self._setup.options
        count = options.flood if rng.random() < _FLOOD_SHARE else options.burst
        first = self._next_value
        self._next_value += count
        partitions = [rng.randrange(self._setup.partitions) for _ in range(count)]
        records = [record_of(self._setup, first + place) for place in range(count)]
        messages = [
            record.message(key_of(topic, partition))
            for record, partition in zip(records, partitions, strict=True)
        ]
        self._history.append(process, "invoke", "send", messages)
        results = await self._attempt(producer, records, partitions, timeout_s)
        return complete(self._setup, process, messages, results)

    async def _attempt(
        self,
        producer: DriverProducer,
        records: Sequence[Outgoing],
        partitions: Sequence[int],
        timeout_s: float | None,
    ) -> list[int | BaseException]:
        """Queue all records, in order, and wait; return the offset or the error of each."""
        pending: list[asyncio.Future[int]] = []
        last: list[int | BaseException] = []  # of the record that could not be queued
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    for record, partition in zip(records, partitions, strict=True):
                        pending.append(await record.send(producer, self._setup.topic, partition))
                except SendFailed as error:
                    last = [error]
                if pending:
                    await asyncio.wait(pending)
        except TimeoutError:
            if len(pending) < len(records) and not last:
                last = [SendFailed("killed while it was sent", definite=False)]
        finally:
            for attempt in pending:
                attempt.cancel()
            results = await asyncio.gather(*pending, return_exceptions=True)
        results += last
        never_sent = SendFailed("not sent", definite=True)
        return [*results, *(never_sent for _ in records[len(results) :])]


WORKLOAD: Final = Workload(
    name="idempotent_send",
    text="idempotent producers send in bursts and are killed meanwhile; no value is duplicated",
    options=IdempotentSendOptions,
    clients=IdempotentSend,
    dense=True,
    faults=("kill", "pause_kill", "ack_kill"),  # resends, and early acknowledgements
)

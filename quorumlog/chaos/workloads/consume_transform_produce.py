"""consume_transform_produce: workers move records from inputs to outputs, exactly once.

A worker polls its inputs, and in one transaction sends one record to an output for each and commits
the group's offsets. It proves or refutes that each input is in exactly one committed transaction,
and that the records of such a transaction are in the outputs, once, while workers fail: some abort,
some vanish in the middle of a transaction, some linger while a successor with their transactional
id takes over, and then try to commit (zombies). A new worker, and one that has aborted, continues
at the group's committed offsets. The checker is `kafka_log`, with its rules about offsets in
transactions.

Half of the topic's partitions are inputs, the other half outputs: `--partitions` of each. Each
input belongs to one worker, so that every driver can do this (KIP-98); `group_consume` has a group
with changing members. An output's value is the number of the attempt.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Final

from quorumlog.chaos.drivers.driver import (
    CommittedReader,
    DriverError,
    DriverProducer,
    TransactionalProducer,
)
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.readers import key_of, message_of
from quorumlog.chaos.workloads.sends import keep_sending, record_of, send_one
from quorumlog.chaos.workloads.transactions import (
    OFFSETS,
    CommittedReaders,
    Crash,
    Lives,
    open_reader,
    send_all,
    transact,
    transactions_of,
)
from quorumlog.chaos.workloads.workload import (
    REOPEN_S,
    LaneOptions,
    Setup,
    Topic,
    Workload,
    one_topic,
    opened,
    option,
)

_POLL_MS: Final = 200
_LINGERS_S: Final = 1.5  # of a zombie, on average


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeTransformProduceOptions(LaneOptions):
    """The number of clients, the rate of sends, and the failures of workers."""

    rate: float = option(120.0, "records a second for all inputs, while brokers answer")
    producers: int = option(2, "clients that send to the inputs, one record at a time each")
    consumers: int = option(1, "read_committed clients during the run", above=-1)
    final_readers: int = option(2, "clients that read everything at the end")
    workers: int = option(2, "workers at a time; the inputs are divided among them")
    aborts: float = option(0.15, "the share of transactions that are aborted on purpose", above=-1)
    crashes: float = option(0.05, "the share in which the worker dies before the end", above=-1)
    zombies: float = option(
        0.05, "the share that is committed after a successor has started", above=-1
    )


class _Worker:
    """One life of a worker: a producer, a reader, and the process of both."""

    def __init__(
        self,
        setup: Setup[ConsumeTransformProduceOptions],
        process: int,
        inputs: Sequence[int],
        producer: TransactionalProducer,
        reader: CommittedReader,
    ) -> None:
        self._setup: Final = setup
        self.process: Final = process
        self._inputs: Final = inputs
        self._producer: Final = producer
        self._reader: Final = reader
        self.is_of_use = True

    async def resume(self) -> Mapping[int, int] | None:
        """Seek to the committed offsets, and return them; None if that failed."""
        setup, topic = self._setup, self._setup.topic
        asked = self._places(dict.fromkeys(self._inputs, UNKNOWN_OFFSET))
        setup.history.append(self.process, "invoke", "committed", asked)
        try:
            found = await self._reader.committed(topic, self._inputs)
        except DriverError as error:
            setup.history.append(self.process, "fail", "committed", asked, error=str(error))
            self.is_of_use = False
            return None
        known = {index: found.get(index, UNKNOWN_OFFSET) for index in self._inputs}
        setup.history.append(self.process, "ok", "committed", self._places(known))
        offsets = {index: max(offset, 0) for index, offset in known.items()}
        setup.history.append(self.process, "invoke", "seek", self._places(offsets))
        try:
            await self._reader.seek(topic, offsets)
        except DriverError as error:
            setup.history.append(
                self.process, "info", "seek", self._places(offsets), error=str(error)
            )
            self.is_of_use = False
            return None
        setup.history.append(self.process, "ok", "seek", self._places(offsets))
        return offsets

    def _places(self, offsets: Mapping[int, int], f: str = "") -> list[Message]:
        topic = self._setup.topic
        return [Message(key_of(topic, index), at, 0, f=f) for index, at in offsets.items()]

    async def poll(self) -> list[Message]:
        """Return the records of a poll; an empty list if it fails."""
        try:
            records = await self._reader.poll(_POLL_MS)
        except DriverError as error:
            self.is_of_use = not isinstance(error, TimeoutError)
            await asyncio.sleep(REOPEN_S)
            return []
        return [message_of(record)._replace(f="poll") for record in records]

    async def transform(
        self,
        polled: Sequence[Message],
        outputs: Sequence[Message],
        *,
        commits: bool,
        crashes: bool = False,
        successor: asyncio.Event | None = None,
        lingers_s: float = 0.0,
    ) -> bool:
        """Perform one transaction; return whether it is committed.

        `successor`: set in the middle, `lingers_s` before the commit.
        """
        setup = self._setup
        after = {message.key: message.offset + 1 for message in polled}
        told = [*outputs, *polled]
        told += [Message(key, offset, 0, f=OFFSETS) for key, offset in after.items()]
        setup.history.append(self.process, "invoke", "txn", told)

        async def work() -> bool:
            await send_all(setup, self._producer, told, range(len(outputs)))
            offsets = {int(key.rpartition("-")[2]): offset for key, offset in after.items()}
            await self._producer.send_offsets(group_of(setup.topic), setup.topic, offsets)
            if crashes:
                raise Crash
            if successor is not None:
                successor.set()
                await asyncio.sleep(lingers_s)
            return commits

        outcome, error, is_of_use = await transact(setup, self._producer, work, told)
        setup.history.append(self.process, outcome, "txn", told, error=error)
        self.is_of_use &= is_of_use
        return outcome == "ok"

    async def close(self) -> None:
        await self._producer.close()
        await self._reader.close()


def workers_of(workers: int, inputs: int) -> range:
    """Return the lanes of workers: fewer than the inputs, where there are two inputs.

    So some worker has two, and a transaction may commit the offsets of two partitions.
    """
    return range(min(workers, max(1, inputs - 1)))


def group_of(topic: str) -> str:
    """Return the name of the group whose offsets the workers commit."""
    return f"{topic}-workers"


class ConsumeTransformProduce:
    """The lanes of one run. Invariant: no value is sent twice."""

    def __init__(self, setup: Setup[ConsumeTransformProduceOptions]) -> None:
        options = setup.options
        self._setup: Final = setup
        self._inputs: Final = range(setup.partitions)
        self._outputs: Final = range(setup.partitions, 2 * setup.partitions)
        self._lanes: Final = workers_of(options.workers, setup.partitions)
        self._new_value: Final = count().__next__
        self._new_process: Final = count(
            options.producers + options.consumers + options.final_readers
        ).__next__
        both = replace(setup, partitions=2 * setup.partitions)
        self._readers: Final = CommittedReaders(both, self._new_process, self._new_value)

    async def work(self, working: asyncio.Event) -> None:
        """Send to the inputs, and move records to the outputs, until `working` is cleared."""
        options = self._setup.options
        async with asyncio.TaskGroup() as tasks:
            for lane in range(options.producers):
                rng = self._setup.rng(f"producer {lane}")
                tasks.create_task(self._produce(lane, rng, working))
            for lane in self._lanes:
                rng = self._setup.rng(f"worker {lane}")
                tasks.create_task(self._succeed(lane, rng, working, tasks))
            tasks.create_task(self._readers.work(working))

    async def _produce(self, process: int, rng: random.Random, working: asyncio.Event) -> None:
        setup, options = self._setup, self._setup.options
        gap_s = options.producers / options.rate

        async def send(producer: DriverProducer, process: int) -> bool:
            partition = rng.choice(self._inputs)
            return await send_one(setup, producer, process, partition, self._new_value())

        processes = chain([process], iter(self._new_process, None))
        await keep_sending(setup, processes, working, send, rng=rng, gap_s=gap_s)

    async def _succeed(
        self, lane: int, rng: random.Random, working: asyncio.Event, tasks: asyncio.TaskGroup
    ) -> None:

        async def live(is_replaced: asyncio.Event) -> None:
            worker = await self._open(lane)
            if worker is None:
                return
            try:
                if await worker.resume() is not None:
                    await self._resume(worker, rng, working, is_replaced)
            finally:
                await worker.close()

        await Lives(tasks, working).succeed(live)

    async def _open(self, lane: int) -> _Worker | None:
        """Open the next worker of a lane, which fences its predecessor; None if that failed."""
        setup, process = self._setup, self._new_process()
        inputs = self._inputs[lane :: len(self._lanes)]
        name = f"{setup.topic}-worker-{lane}"
        made = transactions_of(setup).transactional(setup.bootstrap, f"p{process}", name)
        producer = await opened(made)
        if producer is None:
            return None
        reader = await open_reader(setup, process, group_of(setup.topic), inputs)
        if reader is None:
            await producer.close()
            return None
        return _Worker(setup, process, inputs, producer, reader)

    async def _resume(
        self,
        worker: _Worker,
        rng: random.Random,
        working: asyncio.Event,
        is_replaced: asyncio.Event,
    ) -> None:
        """Move records until the worker cannot be used again, or another one has replaced it."""
        options = self._setup.options
        while working.is_set() and worker.is_of_use and not is_replaced.is_set():
            polled = await worker.poll()
            if not polled:
                continue
            drawn = rng.random()
            is_zombie = drawn < options.zombies
            is_committed = await worker.transform(
                polled,
                self._transformed(polled, rng),
                commits=rng.random() >= options.aborts,
                crashes=options.zombies <= drawn < options.zombies + options.crashes,
                successor=is_replaced if is_zombie else None,
                lingers_s=rng.expovariate(1 / _LINGERS_S),
            )
            if not is_committed and worker.is_of_use and not is_replaced.is_set():
                await worker.resume()

    def _transformed(self, polled: Sequence[Message], rng: random.Random) -> list[Message]:
        """Return a message for an output for each polled message."""
        topic = self._setup.topic
        keys = [key_of(topic, rng.choice(self._outputs)) for _ in polled]
        return [record_of(self._setup, self._new_value()).message(key, "send") for key in keys]

    async def final_reads(self, timeout_s: float) -> bool:
        """Move the remaining records, then read all to the end; return whether that was done."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        ends = await self._readers.close(self._inputs, deadline_s)
        drains = (self._drain(lane, ends, deadline_s) for lane in self._lanes)
        drained = await asyncio.gather(*drains)
        is_read = await self._readers.final_reads(deadline_s - loop.time())
        return bool(ends) and all(drained) and is_read

    async def _drain(self, lane: int, ends: Mapping[int, int], deadline_s: float) -> bool:
        """Move records until the group has committed the closing records of this lane's inputs."""
        rng, loop = random.Random(f"drain {lane}"), asyncio.get_running_loop()  # noqa: S311 - reproducible
        inputs = self._inputs[lane :: len(self._lanes)]
        while loop.time() < deadline_s:
            worker = await self._open(lane)
            if worker is None:
                continue
            try:
                at = await worker.resume()
                if at is not None and all(at[index] > ends.get(index, -1) for index in inputs):
                    return True  # confirmed by a new worker: some libraries do not await commits
                is_committed = at is not None
                while worker.is_of_use and is_committed and loop.time() < deadline_s:
                    if not (polled := await worker.poll()):
                        break
                    outputs = self._transformed(polled, rng)
                    is_committed = await worker.transform(polled, outputs, commits=True)
            finally:
                await worker.close()
        return False


def _topics(setup: Setup[ConsumeTransformProduceOptions]) -> tuple[Topic, ...]:
    return one_topic(replace(setup, partitions=2 * setup.partitions))


WORKLOAD: Final = Workload(
    name="consume_transform_produce",
    text="workers move records in transactions with their offsets; each is moved exactly once",
    options=ConsumeTransformProduceOptions,
    clients=ConsumeTransformProduce,
    topics=_topics,
    requires=frozenset({"transactions"}),
)

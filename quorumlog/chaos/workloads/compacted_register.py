"""compacted_register: keys of a compacted topic are registers; the last record is the value.

It proves or refutes that each key is a linearizable register. A write appends a record with the
register's name as its key. A read must find the records before it, on any leader: it appends a
mark, reads the partition from its beginning up to that mark, and takes the last value of the key
below it. The mark's offset is the moment of the read, so even a replaced leader may serve the
records. A read whose mark was not acknowledged, or that did not finish, is `fail`: it proves
nothing. So is a read that compaction has overtaken.

Busy registers are written again within a moment, which hides that their newest record was removed.
So some registers are cold: each is written once, and read at the end.

The topic has cleanup.policy=compact. A history holds `write` and `read` (`f`), the micro-operation
names the register; a register that was never written is null. The checker is `register`.
"""

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

from quorumlog.chaos.drivers.driver import DriverConsumer, DriverProducer, Record, SendFailed
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.readers import message_of
from quorumlog.chaos.workloads.sends import attempt, record_of
from quorumlog.chaos.workloads.workload import (
    REOPEN_S,
    LaneOptions,
    Setup,
    Workload,
    before,
    one_topic,
    opened,
    option,
    use_clients,
)

_POLL_MS: Final = 200
_READ_S: Final = 10.0
_MARK: Final = b"mark"
_COMPACTED: Final = {"cleanup.policy": "compact"}
_NOTHING: Final = "null"
_COLD_SHARE: Final = 0.05  # of the writes, while there are cold registers left


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedRegisterOptions(LaneOptions):
    """The number of clients and registers, and the rates of writes and reads."""

    rate: float = option(60.0, "writes a second of all producers, while brokers answer")
    producers: int = option(4, "clients that write")
    consumers: int = option(4, "clients that read")
    final_readers: int = option(2, "clients that read every register at the end")
    registers: int = option(6, "keys, spread over the partitions")
    cold: int = option(20, "more keys, each written once and read at the end", above=-1)
    reads: float = option(30.0, "reads a second of all clients that read")


class _Client:
    """A producer, and a consumer for clients that read: one process."""

    def __init__(self, producer: DriverProducer, consumer: DriverConsumer | None) -> None:
        self.producer: Final = producer
        self.consumer: Final = consumer

    async def close(self) -> None:
        await self.producer.close()
        if self.consumer is not None:
            await self.consumer.close()


class CompactedRegister:
    """The lanes of one run. Invariant: no value is written twice."""

    def __init__(self, setup: Setup[CompactedRegisterOptions]) -> None:
        self._setup: Final = setup
        self._history: Final = setup.history
        self._next_value = 0
        self._cold_written = 0
        self._new_process: Final = count().__next__

    async def work(self, working: asyncio.Event) -> None:
        """Write and read until `working` is cleared."""
        options, rng = self._setup.options, self._setup.rng
        async with asyncio.TaskGroup() as tasks:
            for lane in range(options.producers):
                tasks.create_task(self._resume(rng(f"writer {lane}"), working, writes=True))
            for lane in range(options.consumers):
                tasks.create_task(self._resume(rng(f"reader {lane}"), working, writes=False))

    async def _resume(self, rng: random.Random, working: asyncio.Event, *, writes: bool) -> None:
        """Write or read one register after the other; after a doubt, as another process."""
        options = self._setup.options
        gap_s = options.producers / options.rate if writes else options.consumers / options.reads

        async def act(client: _Client, process: int) -> bool:
            await asyncio.sleep(rng.expovariate(1 / gap_s))
            register = rng.randrange(options.registers)
            if not writes:
                return await self._read(client, process, register)
            return await self._write(client, process, self._maybe_cold(rng) or register)

        await use_clients(working.is_set, lambda: self._open(reads=not writes), act)

    def _maybe_cold(self, rng: random.Random) -> int | None:
        """Return a cold register that was never written, for some writes."""
        options = self._setup.options
        if self._cold_written == options.cold or rng.random() >= _COLD_SHARE:
            return None
        self._cold_written += 1
        return options.registers + self._cold_written - 1

    def _name(self, register: int) -> str:
        """Return the key of a register: the cold ones come after the others."""
        busy = self._setup.options.registers
        return f"r{register}" if register < busy else f"c{register - busy}"

    async def _open(self, *, reads: bool) -> tuple[int, _Client | None]:
        setup, process = self._setup, self._new_process()
        producer = await opened(setup.driver.producer(setup.bootstrap, f"p{process}"))
        if producer is None or not reads:
            return process, None if producer is None else _Client(producer, None)
        consumer = await opened(setup.driver.consumer(setup.bootstrap, f"c{process}"))
        if consumer is None:
            await producer.close()
            return process, None
        return process, _Client(producer, consumer)

    async def _write(self, client: _Client, process: int, register: int) -> bool:
        """Write a new value; return whether the outcome is certain."""
        setup, name = self._setup, self._name(register)
        record = record_of(setup, self._next_value, key=name.encode())
        self._next_value += 1
        partition = register % setup.partitions
        sent = await attempt(
            setup, client.producer, process, partition, record, f="write", key=name
        )
        return isinstance(sent, int) or sent.definite

    async def _read(self, client: _Client, process: int, register: int) -> bool:
        """Read a register; return whether the client can be used again."""
        name, partition = self._name(register), register % self._setup.partitions
        meant = [Message(name, UNKNOWN_OFFSET, 0, text=_NOTHING)]
        self._history.append(process, "invoke", "read", meant)
        try:
            record = record_of(self._setup, process, key=_MARK)
            mark = await (await record.send(client.producer, self._setup.topic, partition))
            async with asyncio.timeout(_READ_S):
                last = await self._last_below(client.consumer, partition, mark, name.encode())
        except (SendFailed, ConnectionError, TimeoutError) as error:
            said = str(error) or "NO_ANSWER: the read did not reach the mark"
            self._history.append(process, "fail", "read", meant, error=said)
            await asyncio.sleep(REOPEN_S)
            return False
        told = meant if last is None else [message_of(last)._replace(key=name)]
        self._history.append(process, "ok", "read", told)
        return True

    async def _last_below(
        self, consumer: DriverConsumer | None, partition: int, mark: int, key: bytes
    ) -> Record | None:
        """Read a partition from its beginning up to the mark; return the last record of `key`.

        Missing records were compacted: a record after the mark may have replaced the last record
        below it. Then the partition is read to its high watermark; if the key occurs after the
        mark, the value at the mark is uncertain: ConnectionError.
        """
        if consumer is None:
            raise ConnectionError("NOT_OPEN: this client does not read")
        await consumer.assign(self._setup.topic, [partition])
        last: Record | None = None
        expected, is_whole, end = 0, True, UNKNOWN_OFFSET
        while True:
            for record in await consumer.poll(_POLL_MS):
                is_whole = is_whole and record.offset == expected
                expected = record.offset + 1
                if record.offset < mark:
                    last = record if record.key == key else last
                elif is_whole:
                    return last
                elif record.key == key:
                    raise ConnectionError(
                        "COMPACTED: compaction may have removed the value at the mark"
                    )
            if expected > mark and end == UNKNOWN_OFFSET:
                ends = await consumer.end_offsets(self._setup.topic, [partition])
                end = ends[partition]
            if expected > mark and expected >= end:
                return last

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every register with every final reader; return whether all finished in time."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        readers = range(self._setup.options.final_readers)
        return all(await asyncio.gather(*(self._read_all(deadline_s) for _ in readers)))

    async def _read_all(self, deadline_s: float) -> bool:
        left = [*range(self._setup.options.registers + self._cold_written)]

        async def read(client: _Client, process: int) -> bool:
            is_read = await self._read(client, process, left[0])
            del left[:is_read]
            return is_read

        opening = partial(self._open, reads=True)
        await use_clients(lambda: bool(left) and before(deadline_s), opening, read)
        return not left


WORKLOAD: Final = Workload(
    name="compacted_register",
    text="keys are registers: the last value of each, read up to a mark, is linearizable",
    options=CompactedRegisterOptions,
    clients=CompactedRegister,
    topics=partial(one_topic, config=_COMPACTED),
    model="register",
    offers=frozenset({"write"}),
)

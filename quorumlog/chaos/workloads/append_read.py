"""append_read: producers append globally unique values, consumers read every partition in order.

It is the workload that proves or refutes "an acknowledged record is there": every value is sent
once, so each record read names the one send it came from. Producers ask for acks=all.

One lane is one client with one operation at a time. A lane whose operation ends in `info` goes on
as a new process with a new client, because the old one may still be about to act (Jepsen).
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from quorumlog.chaos.drivers import Driver, DriverConsumer, DriverProducer, Message, SendFailed

NAME: Final = "append_read"
_POLL_MS: Final = 200
_FINAL_POLL_MS: Final = 500
_SEND_TIMEOUT_S: Final = 10.0  # the driver's own delivery timeout is shorter
_REOPEN_S: Final = 0.1  # between attempts to open a client while nobody answers
_NOT_OURS: Final = -1  # stands for a record that no value of ours can be read from

MessageRow = tuple[str, int, int]  # key "topic-partition", offset or -1, value


class Recorder(Protocol):
    """Where operations are written down as they happen."""

    def invoke(self, process: int, f: str, messages: Sequence[MessageRow] = ()) -> None:
        """Write an invocation."""

    def complete(
        self,
        process: int,
        outcome: str,
        f: str,
        messages: Sequence[MessageRow] = (),
        error: str = "",
    ) -> None:
        """Write the completion of the process's last invocation: ok, fail or info."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReadSettings:
    """How much is going on."""

    topic: str
    partitions: int = 3
    producers: int = 8
    consumers: int = 3
    rate_per_s: float = 600.0  # of all producers together, while everybody answers
    final_readers: int = 2


class AppendRead:
    """The lanes of one run.

    Invariant: no value is sent twice, and no process number acts again after `info`.
    """

    def __init__(
        self,
        driver: Driver,
        bootstrap: str,
        settings: AppendReadSettings,
        recorder: Recorder,
        *,
        seed: int,
    ) -> None:
        self._driver: Final = driver
        self._bootstrap: Final = bootstrap
        self._settings: Final = settings
        self._recorder: Final = recorder
        self._seed: Final = seed
        self._next_value = 0
        self._lanes: Final = settings.producers + settings.consumers + settings.final_readers
        self.sends_ok = self.sends_info = self.sends_fail = self.records_read = 0

    async def run(self, *, producing: asyncio.Event, consuming: asyncio.Event) -> None:
        """Produce and consume until each event is cleared."""
        settings = self._settings
        async with asyncio.TaskGroup() as tasks:
            for lane in range(settings.producers):
                tasks.create_task(self._produce(lane, producing))
            for lane in range(settings.consumers):
                tasks.create_task(self._consume(settings.producers + lane, consuming))

    async def _produce(self, lane: int, running: asyncio.Event) -> None:
        rng = random.Random(f"producer {lane} of {self._seed}")  # noqa: S311 - reproducible
        loop = asyncio.get_running_loop()
        gap_s = self._settings.producers / self._settings.rate_per_s
        process = lane
        producer: DriverProducer | None = None
        due_s = loop.time()
        try:
            while running.is_set():
                due_s = max(due_s + rng.expovariate(1 / gap_s), loop.time())
                await asyncio.sleep(due_s - loop.time())
                if producer is None:
                    try:
                        producer = await self._driver.producer(self._bootstrap, f"p{process}")
                    except ConnectionError:  # nobody answers: nothing was asked of anybody
                        await asyncio.sleep(_REOPEN_S)
                        continue
                partition = rng.randrange(self._settings.partitions)
                if not await self._send(producer, process, partition):
                    process += self._lanes
                    unsure, producer = producer, None
                    await unsure.close()
        finally:
            if producer is not None:
                await producer.close()

    async def _send(self, producer: DriverProducer, process: int, partition: int) -> bool:
        """Send one value; return whether the process may act again."""
        topic, value = self._settings.topic, self._next_value
        self._next_value += 1
        key = f"{topic}-{partition}"
        self._recorder.invoke(process, "send", [(key, -1, value)])
        try:
            sent = producer.send(topic, partition, str(value).encode())
            offset = await asyncio.wait_for(sent, _SEND_TIMEOUT_S)
        except SendFailed as error:
            outcome = "fail" if error.definite else "info"
            self._recorder.complete(process, outcome, "send", [(key, -1, value)], str(error))
            self.sends_fail += error.definite
            self.sends_info += not error.definite
            return error.definite
        except TimeoutError:
            self._recorder.complete(process, "info", "send", [(key, -1, value)], "no answer")
            self.sends_info += 1
            return False
        self._recorder.complete(process, "ok", "send", [(key, offset, value)])
        self.sends_ok += 1
        return True

    async def _consume(self, process: int, running: asyncio.Event) -> None:
        consumer: DriverConsumer | None = None
        try:
            while running.is_set():
                if consumer is None:
                    consumer = await self._assigned(process)
                else:
                    await self._poll(consumer, process, "poll", _POLL_MS)
        finally:
            if consumer is not None:
                await consumer.close()

    async def _assigned(self, process: int) -> DriverConsumer | None:
        """Open a consumer of all partitions, from their beginning; None if nobody answers now."""
        topic, partitions = self._settings.topic, range(self._settings.partitions)
        try:
            consumer = await self._driver.consumer(self._bootstrap, f"c{process}")
        except ConnectionError:
            await asyncio.sleep(_REOPEN_S)
            return None
        rows = [(f"{topic}-{partition}", -1, -1) for partition in partitions]
        self._recorder.invoke(process, "assign", rows)
        await consumer.assign(topic, partitions)
        self._recorder.complete(process, "ok", "assign", rows)
        return consumer

    async def _poll(
        self, consumer: DriverConsumer, process: int, f: str, timeout_ms: int
    ) -> list[Message]:
        self._recorder.invoke(process, f)
        try:
            messages = await consumer.poll(timeout_ms)
        except ConnectionError as error:  # nothing was returned, and the position stands
            self._recorder.complete(process, "fail", f, error=str(error))
            await asyncio.sleep(_REOPEN_S)
            return []
        self._recorder.complete(process, "ok", f, [_row(message) for message in messages])
        self.records_read += len(messages)
        return messages

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every partition from its beginning to its end; return whether all readers did.

        Call it when the cluster is healed and nobody produces any more.
        """
        first = self._settings.producers + self._settings.consumers
        results = await asyncio.gather(
            *(
                self._read_to_end(first + reader, timeout_s)
                for reader in range(self._settings.final_readers)
            )
        )
        return all(results)

    async def _read_to_end(self, process: int, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        consumer: DriverConsumer | None = None
        while consumer is None:
            if loop.time() > deadline_s:
                return False
            consumer = await self._assigned(process)
        try:
            return await self._read_and_compare(consumer, process, deadline_s)
        finally:
            await consumer.close()

    async def _read_and_compare(
        self, consumer: DriverConsumer, process: int, deadline_s: float
    ) -> bool:
        """Read on until an end that is asked for then has been reached; False if not in time."""
        loop = asyncio.get_running_loop()
        positions = dict.fromkeys(range(self._settings.partitions), 0)
        ends: dict[int, int] = {}
        while loop.time() < deadline_s:
            if all(positions[index] >= end for index, end in ends.items()):
                ends, is_reached = await self._final_end(consumer, process, positions)
                if is_reached:
                    return True
            else:
                for message in await self._poll(consumer, process, "final_poll", _FINAL_POLL_MS):
                    positions[message.partition] = message.offset + 1
        return False

    async def _final_end(
        self, consumer: DriverConsumer, process: int, positions: Mapping[int, int]
    ) -> tuple[dict[int, int], bool]:
        """Ask where the logs end; return that (empty: no answer) and whether all was read."""
        topic = self._settings.topic
        self._recorder.invoke(process, "final_end")
        try:
            ends = await consumer.end_offsets(topic, range(self._settings.partitions))
        except ConnectionError as error:
            self._recorder.complete(process, "fail", "final_end", error=str(error))
            await asyncio.sleep(_REOPEN_S)
            return {}, False
        is_reached = all(positions[index] >= end for index, end in ends.items())
        rows = [(f"{topic}-{index}", end, -1) for index, end in ends.items()]
        outcome, error_text = ("ok", "") if is_reached else ("fail", "the end is further on")
        self._recorder.complete(process, outcome, "final_end", rows, error_text)
        return ends, is_reached


def _row(message: Message) -> MessageRow:
    text = message.value.decode(errors="replace")
    value = int(text) if text.isascii() and text.isdigit() else _NOT_OURS
    return f"{message.topic}-{message.partition}", message.offset, value

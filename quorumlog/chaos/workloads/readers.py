"""Consumers that read every partition of a topic from its beginning, without a group.

While the cluster is broken they poll; at the end, fresh ones read every log to its end. What they
read names the send it came from by its value: an integer that was sent once.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from quorumlog.chaos.drivers.driver import CallTimedOut, DriverConsumer, Record
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.workload import REOPEN_S, LaneOptions, Setup, opened

_POLL_MS: Final = 200
_FINAL_POLL_MS: Final = 500
_NOT_OURS: Final = -1  # the value of a record that no value of ours can be read from


class Readers:
    """The reading lanes of a run. Their process numbers follow those of the producers."""

    def __init__(self, setup: Setup[LaneOptions]) -> None:
        options = setup.options
        self._setup: Final = setup
        self._history: Final = setup.history
        self._partitions: Final = range(setup.partitions)
        self._consumers: Final = range(options.producers, options.producers + options.consumers)
        end = self._consumers.stop
        self._final_readers: Final = range(end, end + options.final_readers)

    async def work(self, working: asyncio.Event) -> None:
        """Poll with all consumers until `working` is cleared."""
        async with asyncio.TaskGroup() as tasks:
            for process in self._consumers:
                tasks.create_task(self._consume(process, working))

    async def _consume(self, process: int, working: asyncio.Event) -> None:
        consumer: DriverConsumer | None = None
        try:
            while working.is_set():
                if consumer is None:
                    consumer = await self._assigned(process)
                    continue
                try:
                    await self._poll(consumer, process, "poll", _POLL_MS)
                except CallTimedOut:
                    hung, consumer = consumer, None
                    await hung.close()
        finally:
            if consumer is not None:
                await consumer.close()

    async def _assigned(self, process: int) -> DriverConsumer | None:
        """Open a consumer of all partitions, from their beginning; None if no broker answers."""
        setup = self._setup
        consumer = await opened(setup.driver.consumer(setup.bootstrap, f"c{process}"))
        if consumer is None:
            return None
        named = [
            Message(key_of(setup.topic, index), UNKNOWN_OFFSET, -1) for index in self._partitions
        ]
        self._history.append(process, "invoke", "assign", named)
        try:
            await consumer.assign(setup.topic, self._partitions)
        except CallTimedOut as error:
            self._history.append(process, "info", "assign", named, error=str(error))
            await consumer.close()
            return None
        self._history.append(process, "ok", "assign", named)
        return consumer

    async def _poll(
        self, consumer: DriverConsumer, process: int, f: str, timeout_ms: int
    ) -> list[Record]:
        self._history.append(process, "invoke", f)
        try:
            records = await consumer.poll(timeout_ms)
        except CallTimedOut as error:  # it may still take records: this consumer is done for
            self._history.append(process, "info", f, error=str(error))
            raise
        except ConnectionError as error:  # nothing was returned, and the position stands
            self._history.append(process, "fail", f, error=str(error))
            await asyncio.sleep(REOPEN_S)
            return []
        self._history.append(process, "ok", f, map(_message, records))
        return records

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every partition from its beginning to its end; return whether all readers did."""
        results = await asyncio.gather(
            *(self._read_to_end(process, timeout_s) for process in self._final_readers)
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
        except CallTimedOut:
            return False
        finally:
            await consumer.close()

    async def _read_and_compare(
        self, consumer: DriverConsumer, process: int, deadline_s: float
    ) -> bool:
        """Read to an end that is asked for after everything before it was read."""
        loop = asyncio.get_running_loop()
        positions = dict.fromkeys(self._partitions, 0)
        ends: dict[int, int] = {}
        while loop.time() < deadline_s:
            if all(positions[index] >= end for index, end in ends.items()):
                ends, is_reached = await self._final_end(consumer, process, positions)
                if is_reached:
                    return True
            else:
                for record in await self._poll(consumer, process, "final_poll", _FINAL_POLL_MS):
                    positions[record.partition] = record.offset + 1
        return False

    async def _final_end(
        self, consumer: DriverConsumer, process: int, positions: Mapping[int, int]
    ) -> tuple[dict[int, int], bool]:
        """Ask where the logs end; return that (empty: no answer) and whether all was read."""
        topic = self._setup.topic
        self._history.append(process, "invoke", "final_end")
        try:
            ends = await consumer.end_offsets(topic, self._partitions)
        except ConnectionError as error:
            self._history.append(process, "fail", "final_end", error=str(error))
            await asyncio.sleep(REOPEN_S)
            return {}, False
        is_reached = all(positions[index] >= end for index, end in ends.items())
        messages = [Message(key_of(topic, index), end, -1) for index, end in ends.items()]
        outcome, error_text = ("ok", "") if is_reached else ("fail", "the end is further on")
        self._history.append(process, outcome, "final_end", messages, error=error_text)
        return ends, is_reached


def key_of(topic: str, partition: int) -> str:
    """Return what a history calls a partition."""
    return f"{topic}-{partition}"


def _message(record: Record) -> Message:
    text = record.value.decode(errors="replace")
    value = int(text) if text.isascii() and text.isdigit() else _NOT_OURS
    return Message(key_of(record.topic, record.partition), record.offset, value)

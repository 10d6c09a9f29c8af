"""Consumers that read every partition of a topic from its beginning, without a group.

During the faults they poll; at the end, new ones read every log to its end. The value of a record,
an integer that was sent once, identifies its send.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from quorumlog.chaos.drivers.driver import DriverConsumer, Record
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message, checksum_of
from quorumlog.chaos.workloads.workload import REOPEN_S, LaneOptions, Setup, before, opened

_POLL_MS: Final = 200
_FINAL_POLL_MS: Final = 500
_NOT_OURS: Final = -1  # the value of a record that this workload did not send
_END_ASKED_S: Final = 0.2  # between requests while the end is too low
_END_BELIEVED_S: Final = 5.0  # after which an end that stays too low counts as the log's end
# Codes after which a library stops reading the partition until it is assigned again.
_PARKED: Final = ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED", "_AUTO_OFFSET_RESET")


class _LifeOver(Exception):
    """The client of a reader cannot be used again: a new one begins at the beginning."""


class Readers:
    """The reading lanes of a run. Their process numbers follow those of the producers.

    A client whose position is uncertain (a poll of unknown outcome, an offset out of range) is
    replaced by a new one, which is a new process and reads from the beginning.
    """

    def __init__(self, setup: Setup[LaneOptions]) -> None:
        options = setup.options
        self._setup: Final = setup
        self._history: Final = setup.history
        self._partitions: Final = range(setup.partitions)
        self._consumers: Final = range(options.producers, options.producers + options.consumers)
        end = self._consumers.stop
        self._final_readers: Final = range(end, end + options.final_readers)

    def _next_process(self, process: int) -> int:
        return process + self._final_readers.stop

    async def work(self, working: asyncio.Event) -> None:
        """Poll with all consumers until `working` is cleared."""
        async with asyncio.TaskGroup() as tasks:
            for process in self._consumers:
                tasks.create_task(self._consume(process, working))

    async def _consume(self, process: int, working: asyncio.Event) -> None:
        async def poll(consumer: DriverConsumer, process: int) -> bool:
            while working.is_set():
                await self._poll(consumer, process, "poll", _POLL_MS)
            return True

        await self._live(process, working.is_set, poll)

    async def _live(
        self,
        process: int,
        goes_on: Callable[[], bool],
        read: Callable[[DriverConsumer, int], Awaitable[bool]],
    ) -> bool:
        """Read with one client after the other; return the first result, False without any."""
        while goes_on():
            consumer = await self._opened(process)
            if consumer is None:
                continue
            try:
                await self._assign(consumer, process)
                return await read(consumer, process)
            except _LifeOver:
                process = self._next_process(process)
            finally:
                await consumer.close()
        return False

    async def _opened(self, process: int) -> DriverConsumer | None:
        """Open a consumer; None if no broker answers."""
        return await opened(self._setup.driver.consumer(self._setup.bootstrap, f"c{process}"))

    async def _assign(self, consumer: DriverConsumer, process: int) -> None:
        """Assign all partitions, from their beginning. Raises _LifeOver."""
        topic, history = self._setup.topic, self._history
        named = [Message(key_of(topic, index), UNKNOWN_OFFSET, -1) for index in self._partitions]
        history.append(process, "invoke", "assign", named)
        try:
            await consumer.assign(topic, self._partitions)
        except ConnectionError as error:
            history.append(process, "info", "assign", named, error=str(error))
            await asyncio.sleep(REOPEN_S)
            raise _LifeOver from error
        history.append(process, "ok", "assign", named)

    async def _poll(
        self, consumer: DriverConsumer, process: int, f: str, timeout_ms: int
    ) -> list[Record]:
        """Return the records of a poll, an empty list if it fails. Raises _LifeOver."""
        self._history.append(process, "invoke", f)
        try:
            records = await consumer.poll(timeout_ms)
        except TimeoutError as error:  # it may have taken records with it
            self._history.append(process, "info", f, error=str(error) or "NO_ANSWER")
            raise _LifeOver from error
        except ConnectionError as error:  # no records were returned, and the position stands
            self._history.append(process, "fail", f, error=str(error))
            await asyncio.sleep(REOPEN_S)
            if str(error).partition(":")[0] in _PARKED:
                raise _LifeOver from error
            return []
        self._history.append(process, "ok", f, map(message_of, records))
        return records

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every partition from its beginning to its end; return whether all readers did."""
        results = await asyncio.gather(
            *(self._read_to_end(process, timeout_s) for process in self._final_readers)
        )
        return all(results)

    async def _read_to_end(self, process: int, timeout_s: float) -> bool:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        return await self._live(
            process,
            lambda: before(deadline_s),
            lambda consumer, process: self._read_and_compare(consumer, process, deadline_s),
        )

    async def _read_and_compare(
        self, consumer: DriverConsumer, process: int, deadline_s: float
    ) -> bool:
        """Read to ends that are requested after all records below them were read.

        An end below an offset that any client has seen is requested again, until it is believed.
        Raises _LifeOver.
        """
        loop = asyncio.get_running_loop()
        positions = dict.fromkeys(self._partitions, 0)
        ends: dict[int, int] = {}
        too_low_since_s: float | None = None
        while loop.time() < deadline_s:
            if any(positions[index] < end for index, end in ends.items()):
                for record in await self._poll(consumer, process, "final_poll", _FINAL_POLL_MS):
                    positions[record.partition] = record.offset + 1
                continue
            waited_s = 0.0 if too_low_since_s is None else loop.time() - too_low_since_s
            is_believed = waited_s >= _END_BELIEVED_S
            ends, why_not = await self._final_end(
                consumer, process, positions, is_believed=is_believed
            )
            if not why_not:
                return True
            if why_not == _TOO_LOW:
                too_low_since_s = loop.time() if too_low_since_s is None else too_low_since_s
                await asyncio.sleep(_END_ASKED_S)
        return False

    async def _final_end(
        self,
        consumer: DriverConsumer,
        process: int,
        positions: Mapping[int, int],
        *,
        is_believed: bool,
    ) -> tuple[dict[int, int], str]:
        """Request the ends; return them ({} without a response), and why they are not final, or "".

        `is_believed`: accept an end below an offset that clients have seen. Raises _LifeOver.
        """
        topic = self._setup.topic
        self._history.append(process, "invoke", "final_end")
        try:
            ends = await consumer.end_offsets(topic, self._partitions)
        except TimeoutError as error:
            self._history.append(process, "info", "final_end", error=str(error) or "NO_ANSWER")
            raise _LifeOver from error
        except ConnectionError as error:
            self._history.append(process, "fail", "final_end", error=str(error))
            await asyncio.sleep(REOPEN_S)
            return {}, _NO_ANSWER
        seen = self._history.furthest
        keys = {index: key_of(topic, index) for index in ends}
        why_not = ""
        if any(positions[index] < end for index, end in ends.items()):
            why_not = _FURTHER_ON
        elif any(seen.get(keys[index], -1) >= end for index, end in ends.items()):
            why_not = "" if is_believed else _TOO_LOW
        messages = [Message(keys[index], end, -1) for index, end in ends.items()]
        outcome = "fail" if why_not else "ok"
        self._history.append(process, outcome, "final_end", messages, error=why_not)
        return ends, why_not


_NO_ANSWER: Final = "no response"
_FURTHER_ON: Final = "the read has not reached the end"
_TOO_LOW: Final = "the end lies below the last record"


def key_of(topic: str, partition: int) -> str:
    """Return the name of a partition in a history."""
    return f"{topic}-{partition}"


def message_of(record: Record) -> Message:
    """Return a record as a message of a history."""
    text = record.value.decode(errors="replace")
    value = int(text) if text.isascii() and text.isdigit() else _NOT_OURS
    checksum = checksum_of(record.key, record.headers, record.timestamp_ms)
    key = key_of(record.topic, record.partition)
    return Message(key, record.offset, value, checksum=checksum)

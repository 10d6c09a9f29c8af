"""Shared parts of workloads with transactions: transactions, successive lives, committed readers.

A transaction is one operation. Its micro-operations are its sends, its polled records, the
`offsets` of a group that it commits, and `commit`: when the commit was requested, on the history's
clock.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from quorumlog.chaos.drivers.driver import (
    CallTimedOut,
    CommittedReader,
    DriverConsumer,
    DriverError,
    SendFailed,
    TransactionalProducer,
    TransactionsDriver,
)
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.workloads.readers import Readers, key_of
from quorumlog.chaos.workloads.sends import Outgoing, attempt, record_of
from quorumlog.chaos.workloads.workload import REOPEN_S, LaneOptions, Setup, opened

COMMIT: Final = "commit"
OFFSETS: Final = "offsets"
ABORTED: Final = "ABORTED: as it was drawn"
_CLOSING_POLL_MS: Final = 500


def transactions_of(setup: Setup[Any]) -> TransactionsDriver:
    """Return the driver of a workload that requires transactions."""
    return cast(TransactionsDriver, setup.driver)


class Crash(Exception):
    """The client vanishes in the middle of its transaction, without a commit or an abort."""


async def transact(
    setup: Setup[Any],
    producer: TransactionalProducer,
    work: Callable[[], Awaitable[bool]],
    told: list[Message],
) -> tuple[str, str, bool]:
    """Perform one transaction; return its outcome, the error, and whether the client is usable.

    `work` sends, and returns whether to commit. Without a commit request the outcome is `fail`,
    even if the abort fails: no client will commit it. The time of the request is added to `told`.
    """
    is_asked = False
    try:
        await producer.begin()
        if not await work():
            await producer.abort()
            return "fail", ABORTED, True
        told.append(Message("", UNKNOWN_OFFSET, setup.history.elapsed_ns(), f=COMMIT))
        is_asked = True
        await producer.commit()
    except (DriverError, SendFailed) as error:
        if is_asked:
            return ("fail" if error.definite else "info"), str(error), False
        is_of_use = False
        with contextlib.suppress(DriverError):
            await producer.abort()
            is_of_use = not isinstance(error, CallTimedOut)
        return "fail", str(error), is_of_use
    except Crash:
        return "fail", "CRASHED: before the commit was requested", False
    return "ok", "", True


async def send_all(
    setup: Setup[Any], producer: TransactionalProducer, told: list[Message], places: Sequence[int]
) -> None:
    """Send the messages of `told` at these places, and store their offsets. Raises SendFailed."""
    records = []
    for place in places:
        topic, _, partition = told[place].key.rpartition("-")
        records.append((topic, int(partition), record_of(setup, told[place].value)))
    results = await send_in_order(producer, records)
    for place, result in zip(places, results, strict=False):  # the rest was not tried
        if isinstance(result, int):
            told[place] = told[place]._replace(offset=result)
    raise_first(results)


async def send_in_order(
    producer: TransactionalProducer, records: Iterable[tuple[str, int, Outgoing]]
) -> list[int | BaseException]:
    """Send (topic, partition, record); return the offset or the error of each.

    After a record that could not be queued, the others are not tried.
    """
    pending: list[asyncio.Future[int]] = []
    refused: list[SendFailed] = []
    for topic, partition, record in records:
        try:
            pending.append(await record.send(producer, topic, partition))
        except SendFailed as error:
            refused.append(error)
            break
    return [*await asyncio.gather(*pending, return_exceptions=True), *refused]


def raise_first(results: Iterable[int | BaseException]) -> None:
    """Raise the first error among these results, if there is one."""
    for result in results:
        if isinstance(result, BaseException):
            raise result


class Lives:
    """Successive clients under one name; an old one may linger beside its successor."""

    def __init__(self, tasks: asyncio.TaskGroup, working: asyncio.Event) -> None:
        self._tasks: Final = tasks
        self._working: Final = working

    async def succeed(self, live: Callable[[asyncio.Event], Awaitable[None]]) -> None:
        """Begin a new life whenever the last one has ended, or has set its event."""
        while self._working.is_set():
            is_replaced = asyncio.Event()
            self._tasks.create_task(self._live(live, is_replaced))
            await is_replaced.wait()

    async def _live(
        self, live: Callable[[asyncio.Event], Awaitable[None]], is_replaced: asyncio.Event
    ) -> None:
        try:
            await live(is_replaced)
        finally:
            is_replaced.set()


class CommittedReaders(Readers):
    """Readers at read_committed.

    Their end is not a broker's response: when all producers have stopped, a closing record is
    appended to each partition, outside of any transaction. A reader that gets it has passed the
    last stable offset, so no transaction below it is open.
    """

    def __init__(
        self,
        setup: Setup[LaneOptions],
        new_process: Callable[[], int],
        new_value: Callable[[], int],
    ) -> None:
        super().__init__(setup)
        self._new_process: Final = new_process
        self._new_value: Final = new_value
        self._closings: dict[int, int] = {}

    def _next_process(self, process: int) -> int:
        del process
        return self._new_process()

    async def _opened(self, process: int) -> DriverConsumer | None:
        driver, bootstrap = transactions_of(self._setup), self._setup.bootstrap
        return await opened(driver.reader(bootstrap, f"c{process}", f"c{process}"))

    async def close(self, partitions: Sequence[int], deadline_s: float) -> Mapping[int, int]:
        """Append a closing record to each of these; return their offsets, {} if that failed."""
        for partition in partitions:
            while (offset := await self._append(partition)) is None:
                if asyncio.get_running_loop().time() >= deadline_s:
                    return {}
            self._closings[partition] = offset
        return {partition: self._closings[partition] for partition in partitions}

    async def _append(self, partition: int) -> int | None:
        setup, process = self._setup, self._new_process()
        producer = await opened(setup.driver.producer(setup.bootstrap, f"p{process}"))
        if producer is None:
            return None
        try:
            record = record_of(setup, self._new_value())
            sent = await attempt(setup, producer, process, partition, record)
            if isinstance(sent, int):
                return sent
            await asyncio.sleep(REOPEN_S)
            return None
        finally:
            await producer.close()

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every partition from its beginning to its closing record."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        missing = [index for index in self._partitions if index not in self._closings]
        if missing and not await self.close(missing, deadline_s):
            return False
        left_s = deadline_s - asyncio.get_running_loop().time()
        return await super().final_reads(left_s)

    async def _read_and_compare(
        self, consumer: DriverConsumer, process: int, deadline_s: float
    ) -> bool:
        positions, loop = dict.fromkeys(self._partitions, 0), asyncio.get_running_loop()
        while any(positions[index] <= end for index, end in self._closings.items()):
            if loop.time() >= deadline_s:
                return False
            for record in await self._poll(consumer, process, "final_poll", _CLOSING_POLL_MS):
                positions[record.partition] = record.offset + 1
        topic = self._setup.topic
        self._history.append(process, "invoke", "final_end")
        ends = [Message(key_of(topic, index), end, -1) for index, end in positions.items()]
        self._history.append(process, "ok", "final_end", ends)
        return True


async def open_reader(
    setup: Setup[Any], process: int, group_id: str, partitions: Sequence[int]
) -> CommittedReader | None:
    """Open a reader of these partitions, and record it in the history; None if that failed."""
    reader = await opened(transactions_of(setup).reader(setup.bootstrap, f"c{process}", group_id))
    if reader is None:
        return None
    named = [Message(key_of(setup.topic, index), UNKNOWN_OFFSET, -1) for index in partitions]
    setup.history.append(process, "invoke", "assign", named)
    try:
        await reader.assign(setup.topic, partitions)
    except DriverError as error:
        setup.history.append(process, "info", "assign", named, error=str(error))
        await reader.close()
        await asyncio.sleep(REOPEN_S)
        return None
    setup.history.append(process, "ok", "assign", named)
    return reader

"""A driver whose broker has transactions: ideal, or with one planted fault.

The model has no rule of the checkers. It has the parts that decide about visible records: logs with
markers, a last stable offset, a coordinator that fences, offsets that wait for their transaction.
Everything takes a random time; answers of commits get lost, before the commit or after it; markers
come late, one partition after the other. `hits` counts how often the planted fault did something.
"""

import asyncio
import random
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorumlog.chaos.drivers.driver import AT_ONCE, Batching, DriverError, Record, SendFailed

TOPIC = "t"
TIMEOUT_S = 2.0  # after which an open transaction is aborted
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"

FAULTS = {
    "shows_aborted": "a reader gets records of a transaction that was aborted",
    "shows_open": "a reader gets past the last stable offset",
    "half_committed": "the marker of one partition says that the transaction was aborted",
    "half_aborted": "the marker of one partition says that the transaction was committed",
    "commit_ignored": "a commit is answered, and the transaction is aborted",
    "abort_commits": "an abort is answered, and the transaction is committed",
    "marker_lost": "one partition never gets its marker",
    "zombies_accepted": "a successor neither fences its predecessor nor waits for its transaction",
    "late_commit": "a commit is executed once more, in the next transaction of its producer",
    "offsets_outside": "a group's offsets are committed at once, before the transaction ends",
    "offsets_dropped": "a transaction is committed without its offsets",
    "last_offset_dropped": "of the offsets in several partitions the last is not committed",
    "retry_appends_twice": "a batch that was sent again is in the log twice",
    "alters_records": "a record is served without its headers",
    "forgets_records": "a partition loses a committed record",
}


@dataclass
class Txn:
    """One transaction. `decided`: by the coordinator; `markers`: by partition."""

    decided: str = OPEN
    markers: dict[int, str] = field(default_factory=dict)
    partitions: set[int] = field(default_factory=set)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    is_over: bool = False  # all its markers are written, its offsets are visible


@dataclass
class Entry:
    record: Record
    txn: Txn | None


@dataclass
class Id:
    """The coordinator's state of a transactional id."""

    epoch: int = 0
    open: Txn | None = None


class TransactionsInMemory:
    """The broker, as a driver."""

    capabilities = frozenset({"transactions"})

    def __init__(self, seed: int, partitions: int, fault: str = "") -> None:
        assert not fault or fault in FAULTS
        self.rng = random.Random(f"broker {seed}")
        self.fault, self.hits = fault, 0
        self.logs: list[list[Entry | None]] = [[] for _ in range(partitions)]  # None: a marker
        self.stable = [0] * partitions  # no transaction is open below these offsets
        self.ids: dict[str, Id] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.pending: dict[tuple[str, int], list[Txn]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.gone: set[tuple[int, int]] = set()
        self.sent = self.transactions = 0
        self.after = (-1, asyncio.Event())  # cleared after that many transactions

    def strikes(self, share: float = 0.15) -> bool:
        """Return whether the planted fault strikes now; call this only where it may."""
        if self.rng.random() >= share:
            return False
        self.hits += 1
        return True

    async def pause(self, most_s: float = 0.02) -> None:
        await asyncio.sleep(self.rng.random() * most_s)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # --- logs ---

    def last_stable_offset(self, partition: int) -> int:
        log, offset = self.logs[partition], self.stable[partition]
        while offset < len(log):
            entry = log[offset]
            if entry is not None and entry.txn is not None and partition not in entry.txn.markers:
                break
            offset += 1
        self.stable[partition] = offset
        return offset

    def read(self, partition: int, position: int, most: int) -> tuple[list[Record], int]:
        """Return the records at read_committed from `position`, and the next position."""
        end = self.last_stable_offset(partition)
        log, records = self.logs[partition], list[Record]()
        beyond = min(len(log), end + 2)
        if self.fault == "shows_open" and end < len(log) and position < beyond and self.strikes():
            end = beyond
        while position < end and len(records) < most:
            entry = log[position]
            if entry is not None and self.is_shown(partition, position, entry):
                record = entry.record._replace(offset=position)
                is_altered = self.fault == "alters_records" and self.strikes(0.05)
                records.append(record._replace(headers=()) if is_altered else record)
            position += 1
        return records, position

    def is_shown(self, partition: int, offset: int, entry: Entry) -> bool:
        if self.fault == "forgets_records":
            if (partition, offset) in self.gone:
                return False
            is_good = entry.txn is None or entry.txn.markers.get(partition) == COMMITTED
            if is_good and self.strikes(0.01):
                self.gone.add((partition, offset))
                return False
        if entry.txn is None:
            return True
        marker = entry.txn.markers.get(partition)
        if marker == ABORTED and self.fault == "shows_aborted":
            return self.strikes()
        return marker != ABORTED

    async def append(self, record: Record, txn: Txn | None) -> int:
        log = self.logs[record.partition]
        log.append(Entry(record, txn))
        offset = len(log) - 1
        if txn is not None:
            txn.partitions.add(record.partition)
        if self.fault == "retry_appends_twice" and self.strikes(0.03):
            log.append(Entry(record, txn))
        self.sent += 1
        return offset

    # --- the coordinator ---

    async def end(self, txn: Txn, decided: str) -> None:
        """Decide a transaction, and write its markers in the background."""
        if txn.decided != OPEN:
            return
        txn.decided = decided
        is_ignored = self.fault == "commit_ignored" and decided == COMMITTED
        is_undone = self.fault == "abort_commits" and decided == ABORTED
        if txn.partitions and is_ignored and self.strikes():
            decided = ABORTED
        elif txn.partitions and is_undone and self.strikes(0.5):
            decided = COMMITTED
        self.later(self.write_markers(txn, decided))

    async def write_markers(self, txn: Txn, decided: str) -> None:
        partitions = sorted(txn.partitions)
        self.rng.shuffle(partitions)
        odd = partitions[-1] if len(partitions) > 1 else None
        for partition in partitions:
            await self.pause()
            marker = decided
            if partition == odd and decided == COMMITTED and self.fault == "half_committed":
                marker = ABORTED if self.strikes() else marker
            if partition == odd and decided == ABORTED and self.fault == "half_aborted":
                marker = COMMITTED if self.strikes(0.5) else marker
            if partition == odd and self.fault == "marker_lost" and self.strikes(0.03):
                continue
            txn.markers[partition] = marker
            self.logs[partition].append(None)
        await self.pause()
        for place, offset in txn.offsets.items():
            if txn in self.pending[place]:
                self.pending[place].remove(txn)
            if decided == COMMITTED:
                is_last = len(txn.offsets) > 1 and place == [*txn.offsets][-1]
                if self.fault == "last_offset_dropped" and is_last and self.strikes(1.0):
                    continue
                if self.fault == "offsets_dropped" and self.strikes():
                    continue
                self.offsets[place] = offset
        txn.is_over = True

    async def over(self, txn: Txn) -> None:
        while not txn.is_over:
            await self.pause()

    # --- the driver ---

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> "Plain":
        assert (bootstrap, client_id[0], batching) == ("b", "p", AT_ONCE)
        return Plain(self)

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> "Transactional":
        assert (bootstrap, client_id[0]) == ("b", "p")
        await self.pause()
        known = self.ids.setdefault(transactional_id, Id())
        left_open = known.open
        if self.fault == "zombies_accepted":
            self.hits += left_open is not None
            for waiting in self.pending.values():
                waiting[:] = [txn for txn in waiting if txn is not left_open]
        else:
            known.epoch += 1
            known.open = None
            if left_open is not None:
                await self.end(left_open, ABORTED)
                await self.over(left_open)
        return Transactional(self, known)

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> "Reader":
        assert (bootstrap, client_id[0]) == ("b", "c")
        return Reader(self, group_id)

    async def consumer(self, *_: object) -> "Reader":
        raise NotImplementedError

    async def create_topic(self, *_: object, **__: object) -> None:
        raise NotImplementedError


class Plain:
    """A producer without transactions."""

    def __init__(self, broker: TransactionsInMemory) -> None:
        self._broker = broker

    async def send(
        self, topic: str, partition: int, value: bytes, **extras: Any
    ) -> asyncio.Future[int]:
        assert topic == TOPIC
        broker = self._broker
        await broker.pause()
        return _settled(await broker.append(Record(topic, partition, -1, value, **extras), None))

    async def close(self) -> None:
        pass


def _settled(offset: int) -> asyncio.Future[int]:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.set_result(offset)
    return future


class Transactional:
    """The producer of a transactional id."""

    def __init__(self, broker: TransactionsInMemory, known: Id) -> None:
        self._broker, self._id, self._epoch = broker, known, known.epoch
        self._txn: Txn | None = None
        self._last: Txn | None = None

    def _check(self) -> Txn:
        if self._epoch != self._id.epoch:
            raise DriverError("PRODUCER_FENCED", definite=True)
        assert self._txn is not None
        if self._txn.decided != OPEN:
            raise DriverError("INVALID_TXN_STATE", definite=self._txn.decided == ABORTED)
        return self._txn

    async def begin(self) -> None:
        if self._last is not None and self._last.decided != OPEN:
            await self._broker.over(self._last)
        self._last = self._txn = Txn()
        if self._epoch == self._id.epoch:
            self._id.open = self._txn

    async def send(
        self, topic: str, partition: int, value: bytes, **extras: Any
    ) -> asyncio.Future[int]:
        assert topic == TOPIC
        await self._broker.pause()
        try:
            txn = self._check()
        except DriverError as error:
            raise SendFailed(str(error), definite=True) from error
        return _settled(
            await self._broker.append(Record(topic, partition, -1, value, **extras), txn)
        )

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        assert topic == TOPIC
        broker = self._broker
        await broker.pause()
        txn = self._check()
        for partition, offset in offsets.items():
            place = (group_id, partition)
            if broker.fault == "offsets_outside" and broker.strikes(0.5):
                broker.offsets[place] = offset
            txn.offsets[place] = offset
            broker.pending.setdefault(place, []).append(txn)

    async def commit(self) -> None:
        broker, rng = self._broker, self._broker.rng
        await broker.pause()
        chance = rng.random()
        if chance < 0.02:
            raise DriverError("REQUEST_TIMED_OUT", "lost on its way")
        if chance < 0.04:
            broker.later(self._commit_later())
            raise DriverError("REQUEST_TIMED_OUT", "late")
        txn = self._check()
        await broker.end(txn, COMMITTED)
        broker.transactions += 1
        if broker.transactions == broker.after[0]:
            broker.after[1].clear()
        if broker.fault == "late_commit" and broker.strikes():
            broker.later(self._commit_what_comes())
        if chance < 0.06:
            raise DriverError("REQUEST_TIMED_OUT", "no answer")
        await broker.pause()

    async def _commit_later(self) -> None:
        txn = self._txn
        await self._broker.pause(0.3)
        if txn is not None and self._epoch == self._id.epoch:
            await self._broker.end(txn, COMMITTED)

    async def _commit_what_comes(self) -> None:
        txn = self._txn
        for _ in range(100):
            await self._broker.pause()
            if self._txn is not txn and self._txn is not None and self._txn.partitions:
                await self._broker.end(self._txn, COMMITTED)
                return

    async def abort(self) -> None:
        await self._broker.pause()
        await self._broker.end(self._check(), ABORTED)

    async def close(self) -> None:
        if self._txn is not None and self._txn.decided == OPEN:
            self._broker.later(self._time_out(self._txn))

    async def _time_out(self, txn: Txn) -> None:
        await asyncio.sleep(TIMEOUT_S)
        await self._broker.end(txn, ABORTED)


class Reader:
    """A reader at read_committed."""

    def __init__(self, broker: TransactionsInMemory, group_id: str) -> None:
        self._broker, self._group_id = broker, group_id
        self._positions: dict[int, int] = {}

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        assert topic == TOPIC
        self._positions = dict.fromkeys(partitions, 0)

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        assert topic == TOPIC
        assert offsets.keys() == self._positions.keys()
        self._positions = {**offsets}

    async def poll(self, timeout_ms: int) -> list[Record]:
        broker, records = self._broker, list[Record]()
        await broker.pause(timeout_ms / 1000)
        for partition, position in self._positions.items():
            found, self._positions[partition] = broker.read(
                partition, position, broker.rng.randrange(1, 20)
            )
            records += found
        return records

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        assert topic == TOPIC
        broker = self._broker
        places = {(self._group_id, index): index for index in partitions}
        while any(broker.pending.get(place) for place in places):
            await broker.pause()
        return {
            index: broker.offsets[place]
            for place, index in places.items()
            if place in broker.offsets
        }

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        raise NotImplementedError

    async def close(self) -> None:
        pass

"""The work beside the kills of a kill round: an administrator's steps, and logs that are shortened.

One topic loses its oldest segments by size, and records by DeleteRecords; another is compacted.
Both receive records all the time, and a journal of each determines the records at the end: each
acknowledged record from the log start on; in the compacted topic, it or a newer record of its key.
Replicas of all topics move, topics grow, leaders are elected, copies are throttled. Every event is
counted.
"""

import asyncio
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.chaos.back_ends.admin_churner import REFUSED, drawn
from quorumlog.chaos.back_ends.administrator import Administrator
from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.client import Admin, Consumer, KafkaError, NewTopic, Producer, TopicPartition
from quorumlog.invariants import some
from quorumlog.storage.io.checkpoints import CLEANED_FILE, read_offset_checkpoint
from quorumlog.storage.io.disk import RealDisk

RETAINED: Final = "retained"
COMPACTED: Final = "compacted"
RETENTION_BYTES: Final = 40_000
SEGMENT_BYTES: Final = 10_000  # at most, by the settings of the nodes
_CONFIGS: Final[Mapping[str, Mapping[str, str | int]]] = {
    RETAINED: {"retention.bytes": RETENTION_BYTES},
    COMPACTED: {"cleanup.policy": "compact"},
}
_LEFT_BYTES_MIN: Final = RETENTION_BYTES - 2 * SEGMENT_BYTES
"""The minimum left by retention; unacknowledged records may have been truncated since."""
_PARTITIONS: Final = 3
_KEYS: Final = 12
_PADDING: Final = bytes(1_500)
_BURST: Final = 12  # records in flight at once
_PAUSE_S: Final = 0.15  # between bursts
_STEP_S: Final = 0.3  # between the administrator's steps
_LOOK_S: Final = 0.3  # between checks of the disks
_THROTTLED_BYTES_PER_S: Final = 50_000
_CHURN_PER_S: Final = 3
_CALL_TIMEOUT_S: Final = 5.0
_SETTLE_TIMEOUT_S: Final = 60.0
_READ_TIMEOUT_S: Final = 60.0
_FINDINGS_MAX: Final = 10  # per topic
_KEPT_BEHIND: Final = 20  # acknowledged records left by DeleteRecords
_STEPS: Final = ("reassign", "reassign", "grow", "reassign", "delete", "elect", "throttle")


class Logs(NamedTuple):
    """The records of a topic, by partition and offset, and the start and end of each log."""

    numbers: Mapping[tuple[TopicPartition, int], int]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


@dataclass(slots=True)
class Journal:
    """A topic's acknowledged and deleted records. Values are numbers, each sent only once."""

    is_compacted: bool
    acknowledged: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    deleted: dict[TopicPartition, int] = field(default_factory=lambda: defaultdict(int))

    def findings(self, logs: Logs) -> Iterator[str]:
        """Yield the contradictions between the journal and the records read."""
        found, starts, ends = logs
        for number in (n for n, times in Counter(found.values()).items() if times > 1):
            yield f"number {number} is there twice"
        newest = {(at, number % _KEYS): offset for (at, offset), number in sorted(found.items())}
        for (at, offset), number in self.acknowledged.items():
            if offset < starts[at] or found.get((at, offset)) == number:
                continue
            if (at, offset) in found:
                yield f"{at} has number {found[at, offset]} at {offset}, and not {number}"
            elif not (self.is_compacted and newest.get((at, number % _KEYS), -1) > offset):
                yield f"{at} has lost number {number}, acknowledged at {offset}"
        for at, start in starts.items():
            left_bytes = (ends[at] - start) * len(_PADDING)
            if start > self.deleted[at] and (self.is_compacted or left_bytes < _LEFT_BYTES_MIN):
                yield f"{at} starts at {start} and ends at {ends[at]}: too much was removed"


class RoundWork:
    """The work of one round, in a thread of its own.

    `start` it, `finish` it after the last fault, and `give_up` when the cluster is gone.
    """

    def __init__(self, topic: str, cluster: Path, *, brokers: int) -> None:
        """`topic`: the workload's. `cluster`: the directory of its nodes."""
        self.counts: Final = Counter[str]()
        self.findings: Final[list[str]] = []
        self._topic: Final = topic
        self._cluster: Final = cluster
        self._brokers: Final = brokers
        self._journals: Final = {name: Journal(is_compacted=name == COMPACTED) for name in _CONFIGS}
        self._next_number = 0
        self._is_over: Final = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._give_up: Callable[[], object] = self._is_over.set
        self._bootstrap = ""

    def start(self, bootstrap: str) -> None:
        """Start the work."""
        self._bootstrap = bootstrap
        self._thread = threading.Thread(target=self._run, name="round work")
        self._thread.start()

    def finish(self) -> None:
        """End the work, wait until all replicas are in sync, check the logs. Raises its error."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """End the work at once, if it has not ended."""
        self._give_up()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self._error = error

    async def _work(self) -> None:
        loop, task = asyncio.get_running_loop(), some(asyncio.current_task(), "this is a task")
        self._give_up = partial(_cancel, loop, task)
        administrators = [self._administrator(name) for name in (self._topic, RETAINED)]
        async with Admin(self._bootstrap) as admin:
            await admin.create_topics(
                NewTopic(name, _PARTITIONS, self._brokers, configs=dict(configs))
                for name, configs in _CONFIGS.items()
            )
        await administrators[0].perform("churn", _CHURN_PER_S)
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._administer(administrators),
                self._watch_disks(),
                *(self._append(name) for name in _CONFIGS),
            )
        ]
        await asyncio.gather(*tasks)
        for administrator in administrators:
            await administrator.settle()
        self.counts["changes"] = administrators[0].changes
        await self._until_in_sync()
        for name, journal in self._journals.items():
            self.counts[f"{name} records"] = len(journal.acknowledged)
            try:
                found = journal.findings(await self._read(name))
                self.findings.extend(itertools.islice(found, _FINDINGS_MAX))
            except REFUSED as error:
                self.findings.append(f"{name} cannot be read: {error!r}")

    def _administrator(self, topic: str) -> Administrator:
        return Administrator(self._bootstrap, topic=topic, brokers=self._brokers, fewer=1)

    # --- the administrator ---

    async def _administer(self, administrators: list[Administrator]) -> None:
        """Do one step after the other; refused steps do not count."""
        for step in itertools.cycle(_STEPS):
            if self._is_over.is_set():
                return
            administrator = drawn(administrators)
            with suppress(NodeUnavailable, *REFUSED):
                match step:
                    case "throttle":
                        await administrator.perform("throttle", _THROTTLED_BYTES_PER_S)
                        self.counts[step] += 1
                        await asyncio.sleep(1.0)
                        await administrator.perform("release")
                    case "elect" | "delete":
                        async with asyncio.timeout(_CALL_TIMEOUT_S):
                            self.counts[step] += await self._asked(step)
                    case _:
                        await administrator.perform(step)
                        self.counts[step] += 1
            await asyncio.sleep(_STEP_S)

    async def _asked(self, step: str) -> int:
        """Elect the preferred leaders, or delete records; return the number of changes."""
        async with Admin(self._bootstrap) as admin:
            if step == "elect":
                outcomes = await admin.elect_leaders()
                return sum(error is None for error in outcomes.values())
            journal = self._journals[RETAINED]
            ends = dict[TopicPartition, int]()
            for at, offset in journal.acknowledged:
                ends[at] = max(offset, ends.get(at, 0))
            if not ends:
                return 0
            at = drawn(sorted(ends))
            journal.deleted[at] = max(journal.deleted[at], ends[at] - _KEPT_BEHIND)
            await admin.delete_records({at: journal.deleted[at]})
            return 1

    # --- records ---

    async def _append(self, topic: str) -> None:
        """Append bursts; after a failure, with a new producer."""
        while not self._is_over.is_set():
            with suppress(*REFUSED):
                async with Producer(self._bootstrap, linger_ms=5) as producer:
                    while not self._is_over.is_set():
                        await self._burst(producer, topic)
                        await asyncio.sleep(_PAUSE_S)

    async def _burst(self, producer: Producer, topic: str) -> None:
        journal = self._journals[topic]
        partitions = sorted(await producer.partitions_for(topic))
        numbers = range(self._next_number, self._next_number + _BURST)
        self._next_number += _BURST
        deliveries = []
        for number in numbers:
            key = number % _KEYS
            partition = key % _PARTITIONS if journal.is_compacted else drawn(partitions)
            value, name = b"%d " % number + _PADDING, b"%d" % key
            deliveries.append(await producer.send(topic, value, name, partition=partition))
        told = await asyncio.gather(*deliveries, return_exceptions=True)
        for number, outcome in zip(numbers, told, strict=True):
            if isinstance(outcome, KafkaError):
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            at = TopicPartition(topic, outcome.partition)
            journal.acknowledged[at, outcome.offset] = number

    async def _read(self, topic: str) -> Logs:
        """Read a topic to its end."""
        found = dict[tuple[TopicPartition, int], int]()
        async with (
            asyncio.timeout(_READ_TIMEOUT_S),
            Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            logs = [TopicPartition(topic, at) for at in await consumer.partitions_for(topic)]
            ends = await consumer.end_offsets(logs)
            consumer.assign(logs)
            while any([await consumer.position(at) < ends[at] for at in logs]):
                for at, records in (await consumer.poll(200)).items():
                    for record in records:
                        number = int((record.value or b"").partition(b" ")[0])
                        found[at, record.offset] = number
            starts = await consumer.beginning_offsets(logs)  # last: they may advance meanwhile
        return Logs(found, starts, ends)

    async def _until_in_sync(self) -> None:
        """Wait until all moves have ended and all replicas are in sync; else add a finding."""
        left: object = "the cluster does not answer"
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_TIMEOUT_S):
                while left:
                    with suppress(*REFUSED):
                        async with Admin(self._bootstrap) as admin:
                            left = await _not_in_sync(admin)
                    await asyncio.sleep(_STEP_S)
                return
        self.findings.append(f"not in sync after {_SETTLE_TIMEOUT_S:g} s: {left}")

    # --- the nodes' own actions ---

    async def _watch_disks(self) -> None:
        """Count the removals of oldest segments, and the cleanings, by any replica."""
        known = Counter[str]()
        while not self._is_over.is_set():
            seen = dict(_first_offsets(self._cluster))
            for place, offset in seen.items():
                kind = place.partition(" ")[0]
                self.counts[kind] += place in known and offset > known[place]
            known = Counter(seen)
            await asyncio.sleep(_LOOK_S)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the work has ended
        loop.call_soon_threadsafe(task.cancel)


async def _not_in_sync(admin: Admin) -> list[str]:
    moving = [f"{at} moves" for at in await admin.list_partition_reassignments()]
    lagging = [
        f"{name}-{index}: isr {one.isr} of {one.replicas}"
        for name, topic in (await admin.describe_topics()).items()
        for index, one in topic.partitions.items()
        if {*one.isr} != {*one.replicas}
    ]
    return moving + lagging


def _first_offsets(cluster: Path) -> Iterator[tuple[str, int]]:
    """Yield (kind and path, offset) of each replica: its log start, and its first dirty offset."""
    for data in cluster.glob("node-*/data"):
        for log in data.glob(f"{RETAINED}-*"):
            with suppress(OSError, ValueError):  # it is being removed or created
                yield f"cut {log}", min(int(one.stem) for one in log.glob("*.log"))
        with suppress(OSError):
            for at, offset in read_offset_checkpoint(RealDisk(), str(data), CLEANED_FILE).items():
                yield f"cleaned {data} {at}", offset

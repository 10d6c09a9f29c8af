"""mirror: a mirror copies a topic to another cluster, and is killed, paused and replaced.

It proves or refutes that each acknowledged record arrives, in order, once if the mirror copies
exactly once, and that a group which moves to the target misses no record. The checker is `mirror`;
the rules of a log judge the source.

The mirror is a process of its own. It lives for `life_ms` on average; then it is killed, or paused,
or replaced: the next mirror starts while it is paused, and it resumes beside its successor, which
must have fenced it. A run starts a second cluster as the target. In simulation, and with
`--bootstrap`, the copies are in the cluster of the source, under their prefix.

A group commits offsets at the source, in the middle of the sent records, and never reads; an
observer reads its offsets at the target. A history holds, beside sends and reads of the source
(`f`):

  commit      the group commits an offset at the source. key: the partition.
  translated  the observer reads the group's offset at the target. key: the source's partition.
  mirror      a mirror begins, or its life ends. Its micro-operation: `started`, `killed`, `paused`,
              `resumed`, `replaced`, `ended`; value: the number of the mirror.
  copy        the records of the copy, read at the end. key: the source's partition; offset: at the
              target. Its micro-operations are `copy_once` if the mirror copies exactly once.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from quorumlog.chaos.drivers.common import records_of
from quorumlog.chaos.drivers.driver import Record
from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from quorumlog.chaos.history.model import COPIED_ONCE
from quorumlog.chaos.workloads.idempotent_send import IdempotentSend, IdempotentSendOptions
from quorumlog.chaos.workloads.readers import key_of, message_of
from quorumlog.chaos.workloads.sends import attempt, record_of
from quorumlog.chaos.workloads.workload import (
    REOPEN_S,
    MirrorProcess,
    Setup,
    Workload,
    before,
    opened,
    option,
)
from quorumlog.client import Consumer, KafkaError, TopicPartition

ALIAS: Final = "source"
_GROUP_INTERVAL_MS: Final = 500
_REFRESH_INTERVAL_MS: Final = 2_000
_LOOK_S: Final = 0.1
_ACT_S: Final = 0.4  # between two commits, and between two reads of the group's offsets
_POLL_MS: Final = 300
_AFTERWARDS_S: Final = 10.0  # for the translation of the last commits
_READING: Final = {"request_timeout_ms": 2_000, "default_api_timeout_ms": 5_000}
_FIRST_PROCESS: Final = 1_000_000
_COMMITTED: Final = {"isolation_level": "read_committed", "auto_offset_reset": "none"}
_BEGINS_S: Final = 10.0  # a mirror that has copied nothing by then is broken all the same
_PAUSED_SHARE: Final = 0.4  # of a life, on average
_UNMOVED: Final = 4  # reads of the group's offsets without a change at the end


def copy_of(topic: str) -> str:
    """Return the name of a topic's copy."""
    return f"{ALIAS}.{topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions(IdempotentSendOptions):
    """The load of the source, and the lives of mirrors."""

    rate: float = option(200.0, "sends a second of all producers, while brokers answer")
    producers: int = option(3, "clients that send")
    consumers: int = option(1, "clients that read every partition during the run", above=-1)
    final_readers: int = option(1, "clients that read everything at the end")
    exactly_once: int = option(1, "1: the mirror copies exactly once; 0: at least once", above=-1)
    life_ms: int = option(2_500, "the time from the start of a mirror to its next fault")
    pauses: float = option(0.25, "the share of these faults that pauses it", above=-1)
    replacements: float = option(
        0.25, "the share that starts its successor beside it; the rest kill it", above=-1
    )


class _Mirrors:
    """The mirrors of a run, one after the other, each recorded with its number."""

    def __init__(self, setup: Setup[MirrorOptions], process: int, group_id: str) -> None:
        if setup.start_mirror is None:
            raise ValueError("the workload mirror needs a run that starts mirrors")
        self._setup: Final = setup
        self._start_mirror: Final = setup.start_mirror
        self._process: Final = process
        self._number: Final = count(1).__next__
        self.copied = 0  # the sum of the copies' ends, as of the last look
        self._running: dict[int, MirrorProcess] = {}  # by number; the last is the newest
        from quorumlog.mirror.settings import MirrorSettings  # it loads the whole mirror

        self._settings: Final = MirrorSettings(
            source=setup.reach,
            target=setup.reach_target,
            topics=(re.escape(setup.topic),),
            alias=ALIAS,
            groups=(re.escape(group_id),),
            exactly_once=bool(setup.options.exactly_once),
            group_interval_ms=_GROUP_INTERVAL_MS,
            refresh_interval_ms=_REFRESH_INTERVAL_MS,
        )

    def _note(self, kind: str, number: int, error: str = "") -> None:
        message = Message("mirror", UNKNOWN_OFFSET, number, f=kind)
        self._setup.history.append(self._process, "invoke", "mirror", [message])
        self._setup.history.append(self._process, "ok", "mirror", [message], error=error)

    async def start(self) -> None:
        """Start the next mirror; earlier ones may run."""
        number = self._number()
        self._note("started", number)
        self._running[number] = await self._start_mirror(self._settings)

    async def keep(self) -> None:
        """Note the mirrors that have ended; start the next one if none is left."""
        for number, mirror in [*self._running.items()]:
            if (failure := mirror.failure) is not None:
                del self._running[number]
                self._note("ended", number, failure)
        if not self._running:
            await self.start()

    async def live(self, working: asyncio.Event) -> None:
        """Break mirrors until `working` is cleared; then the newest runs on."""
        options, rng = self._setup.options, self._setup.rng("mirror")
        await self.start()
        while working.is_set():
            await self._last(rng.uniform(0.2, 1.8) * options.life_ms / 1000, working)
            drawn = rng.random()
            if drawn < options.pauses:
                await self._pause(rng, working)
            elif drawn < options.pauses + options.replacements:
                await self._pause(rng, working, replaced=True)
            else:
                await self._kill(*self._running)
        await self._kill(*[*self._running][:-1])
        await self.keep()

    async def _last(
        self, seconds: float, working: asyncio.Event, *, until_copied: bool = True
    ) -> None:
        """Let the mirrors run for a while; `until_copied`: it begins with the next copy."""
        loop, before_it = asyncio.get_running_loop(), self.copied
        latest_s = loop.time() + (_BEGINS_S if until_copied else 0)
        end_s: float | None = None
        while working.is_set() and (end_s is None or loop.time() < end_s):
            if end_s is None and (self.copied != before_it or loop.time() >= latest_s):
                end_s = loop.time() + seconds
            await self.keep()
            await asyncio.sleep(_LOOK_S)

    async def _pause(
        self, rng: random.Random, working: asyncio.Event, *, replaced: bool = False
    ) -> None:
        """Pause the newest mirror for a while; `replaced`: the next one starts meanwhile."""
        await self.keep()
        number = [*self._running][-1]
        await self._kill(*[*self._running][:-1])
        mirror = self._running[number]
        self._note("replaced" if replaced else "paused", number)
        await mirror.pause()
        if replaced:
            await self.start()
        mean_s = _PAUSED_SHARE * self._setup.options.life_ms / 1000
        await self._last(rng.expovariate(1 / mean_s), working, until_copied=replaced)
        await mirror.resume()
        self._note("resumed", number)

    async def _kill(self, *numbers: int) -> None:
        for number in numbers:
            self._note("killed", number)
            await self._running.pop(number).kill()

    async def close(self) -> None:
        """Kill all."""
        await self._kill(*self._running)


class MirrorClients(IdempotentSend):
    """The lanes of one run: producers and readers of the source, the mirrors, and a group."""

    def __init__(self, setup: Setup[MirrorOptions]) -> None:
        super().__init__(setup)
        self._group_id: Final = f"{setup.topic}-readers"
        self._new_process: Final = count(_FIRST_PROCESS).__next__
        self._mirrors: Final = _Mirrors(setup, self._new_process(), self._group_id)
        self._target: Final = setup.reach_target
        self._partitions: Final = range(setup.partitions)
        self._copy: Final = copy_of(setup.topic)
        self._committed: Final = dict.fromkeys(self._partitions, 0)
        self._is_once: Final = bool(setup.options.exactly_once)
        self._translated: dict[int, int] = {}

    async def work(self, working: asyncio.Event) -> None:
        """Send, mirror, commit and observe until `working` is cleared."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().work(working))
            tasks.create_task(self._mirrors.live(working))
            tasks.create_task(self._commit_often(working))
            tasks.create_task(self._observe_often(working))

    # --- the group ---

    async def _with_reader(
        self,
        reach: Mapping[str, Any],
        goes_on: Callable[[], bool],
        act: Callable[[Consumer, int], Awaitable[bool]],
        **options: Any,
    ) -> None:
        """Act with one client of the group after the other; `act` returns if it is of use."""
        known = {**_READING, **reach, "enable_auto_commit": False, "group_id": self._group_id}
        while goes_on():
            try:
                async with Consumer(**known, **options) as consumer:
                    process = self._new_process()
                    while goes_on() and await act(consumer, process):
                        pass
            except KafkaError:  # no broker answers
                await asyncio.sleep(REOPEN_S)

    async def _commit_often(self, working: asyncio.Event) -> None:
        rng = self._setup.rng("group")

        async def commit(consumer: Consumer, process: int) -> bool:
            await asyncio.sleep(rng.expovariate(1 / _ACT_S))
            partition = rng.choice(self._partitions)
            key = key_of(self._setup.topic, partition)
            end = self._history.furthest.get(key, UNKNOWN_OFFSET) + 1
            offset = rng.randint(min(self._committed[partition], end), end)
            return await self._commit(consumer, process, partition, offset)

        await self._with_reader(self._setup.reach, working.is_set, commit)

    async def _commit(self, consumer: Consumer, process: int, partition: int, offset: int) -> bool:
        """Commit an offset at the source; return whether the outcome is certain."""
        topic = self._setup.topic
        messages = [Message(key_of(topic, partition), offset, 0)]
        self._history.append(process, "invoke", "commit", messages)
        try:
            await consumer.commit({TopicPartition(topic, partition): offset})
        except KafkaError as error:
            outcome = "fail" if error.definite else "info"
            self._history.append(process, outcome, "commit", messages, error=str(error))
            return error.definite
        self._committed[partition] = offset
        self._history.append(process, "ok", "commit", messages)
        return True

    async def _observe_often(self, working: asyncio.Event) -> None:
        await self._with_reader(self._target, working.is_set, self._observe)

    async def _observe(self, consumer: Consumer, process: int) -> bool:
        """Read the group's offsets at the target, and the ends of the copies."""
        await asyncio.sleep(_ACT_S)
        wanted = [TopicPartition(self._copy, index) for index in self._partitions]
        self._history.append(process, "invoke", "translated")
        try:
            found = await consumer.committed(wanted)
            self._mirrors.copied = sum((await consumer.end_offsets(wanted)).values())
        except KafkaError as error:
            self._history.append(process, "fail", "translated", error=str(error))
            return True
        self._translated = {place.partition: one.offset for place, one in found.items()}
        messages = [
            Message(key_of(self._setup.topic, index), offset, 0)
            for index, offset in self._translated.items()
        ]
        self._history.append(process, "ok", "translated", messages)
        return True

    # --- the end ---

    async def final_reads(self, timeout_s: float) -> bool:
        """Read the source and, once the last records are copied, the copy.

        Return whether all were read in time.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                lasts = {index: await self._close(index) for index in self._partitions}
                is_read = await super().final_reads(timeout_s / 2)
                await self._until_copied(lasts)
                await self._until_translated(lasts)
                await self._mirrors.close()
                await self._read_copy()
        except TimeoutError:
            return False
        finally:
            await self._mirrors.close()
        return is_read and before(deadline_s)

    async def _close(self, partition: int) -> Message:
        """Send the last record of a partition; return it with its offset."""
        setup = self._setup
        while True:
            process = self._new_process()
            producer = await opened(setup.driver.producer(setup.bootstrap, f"p{process}"))
            if producer is None:
                continue
            value, self._next_value = self._next_value, self._next_value + 1
            try:
                sent = await attempt(setup, producer, process, partition, record_of(setup, value))
            finally:
                await producer.close()
            if isinstance(sent, int):
                return Message(key_of(setup.topic, partition), sent, value)

    async def _until_copied(self, lasts: Mapping[int, Message]) -> None:
        """Return once a reader of the copy has received the last record of each partition."""
        missing = {message.value for message in lasts.values()}

        async def look(consumer: Consumer, _: int) -> bool:
            await self._mirrors.keep()
            missing.difference_update(one.value for one in await self._poll_copy(consumer))
            return bool(missing)

        await self._with_reader(self._target, lambda: bool(missing), look, **_COMMITTED)

    async def _until_translated(self, lasts: Mapping[int, Message]) -> None:
        """Commit up to each last record; return when no offset has moved for a while."""
        left = [(index, max(one.offset, self._committed[index])) for index, one in lasts.items()]

        async def commit(consumer: Consumer, process: int) -> bool:
            if await self._commit(consumer, process, *left[-1]):
                left.pop()
                return bool(left)
            return False

        unmoved = 0

        async def observe(consumer: Consumer, process: int) -> bool:
            nonlocal unmoved
            before_it = self._translated
            await self._mirrors.keep()
            await self._observe(consumer, process)
            is_whole = self._translated.keys() == lasts.keys()
            unmoved = unmoved + 1 if is_whole and self._translated == before_it else 0
            return unmoved < _UNMOVED

        with suppress(TimeoutError):
            async with asyncio.timeout(_AFTERWARDS_S):
                await self._with_reader(self._setup.reach, lambda: bool(left), commit)
                await self._with_reader(self._target, lambda: unmoved < _UNMOVED, observe)

    async def _read_copy(self) -> None:
        """Read the copy from its beginning to its end, once: the mirrors have ended."""
        is_over = False
        places = [TopicPartition(self._copy, index) for index in self._partitions]

        async def read(consumer: Consumer, process: int) -> bool:
            nonlocal is_over
            self._history.append(process, "invoke", "copy")
            self._history.append(process, "ok", "copy", await self._poll_copy(consumer))
            with suppress(KafkaError):
                ends = await consumer.end_offsets(places)
                positions = {place: await consumer.position(place) for place in places}
                is_over = all(positions[place] >= end for place, end in ends.items())
            return not is_over

        await self._with_reader(self._target, lambda: not is_over, read, **_COMMITTED)

    async def _poll_copy(self, consumer: Consumer) -> list[Message]:
        """Return more records of the copy, from its beginning on; none after an error."""
        if not consumer.assignment():
            places = [TopicPartition(self._copy, index) for index in self._partitions]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
        try:
            polled = await consumer.poll(_POLL_MS)
        except KafkaError:  # its positions stand
            await asyncio.sleep(REOPEN_S)
            return []
        return [self._copied(record) for record in records_of(polled, time="timestamp_ms")]

    def _copied(self, record: Record) -> Message:
        key = key_of(self._setup.topic, record.partition)
        return message_of(record)._replace(key=key, f=COPIED_ONCE if self._is_once else "copy")


WORKLOAD: Final = Workload(
    name="mirror",
    text="a mirror copies to another cluster, and is killed, paused and replaced meanwhile",
    options=MirrorOptions,
    clients=MirrorClients,
    model="mirror",
    dense=True,
    faults=("kill", "pause"),
    is_mirrored=True,
)

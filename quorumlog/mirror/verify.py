"""Reads both sides of a mirror, and compares them: equal, or the first difference.

It is an oracle: it uses no position and no translated offset of the mirror, but the committed
records of both sides alone. Rules, per partition:

  - The source is read up to the end that it has when the partition is begun; the target must have
    all these records within `wait_ms`. Then the target is read up to its end of that moment, and
    each record there must be a copy of a source record. So a mirror may copy meanwhile.
  - Topics without compaction: the copies have the order of the source, and none is missing. Only
    at the beginning of a log that has lost records (log start offset above 0) may records be
    missing on that side; a side cannot have lost more records than its log start offset.
  - Without `exactly_once`, records may be copied again behind their first copies.
  - Topics that are compacted on either side: the newest record of each key is compared, as
    `core.newest` describes.
  - A partition that the target alone has must be empty.

Memory: the records of a few polls, 100,000 digests, and 200,000 keys on each side; a compacted
partition with more keys is read several times.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from quorumlog.client import Admin, Consumer, ConsumerRecord, KafkaError, TopicPartition
from quorumlog.mirror.core.comparison import AHEAD, EXTRA, Anchors, Difference, InOrder
from quorumlog.mirror.core.newest import (
    NewestByKey,
    Removals,
    Slice,
    TooManyKeys,
    compare_behind,
    compare_newest,
)
from quorumlog.mirror.core.selection import topic_names
from quorumlog.mirror.io.positions_topic import generations_at
from quorumlog.mirror.settings import MirrorSettings
from quorumlog.mirror.verified import (
    NO_PARTITION,
    NO_TOPIC,
    Verified,
    VerifiedPartition,
    VerifiedTopic,
)
from quorumlog.wire.codec.error_codes import ErrorCode

WAIT_MS: Final = 10_000
_POLL_MS: Final = 500
_LOOK_S: Final = 0.2
_SILENT_S: Final = 60.0
_ANCHORS_MAX: Final = 32
Note = Callable[[float], object]
"""Called with the share of the source's records that was read, from 0 to 1."""


async def verify(
    settings: MirrorSettings, *, wait_ms: int = WAIT_MS, note: Note = lambda _: None
) -> Verified:
    """Compare the topics of a mirror's settings. `wait_ms`: for records that are not copied yet.

    Raises KafkaError; OFFSET_OUT_OF_RANGE if a side loses records while they are read. Raises
    MirrorRefused for damaged records of the mirrors that write to the source.
    """
    async with Admin(**settings.source) as source, Admin(**settings.target) as target:
        mirrors_here = await generations_at(source, settings.source)
        target_cluster = (await target.describe_cluster()).cluster_id
        chosen = topic_names(settings, mirrors_here, target_cluster)
        names = [name for name in await source.list_topics() if name in chosen]
        theirs = {*await target.list_topics()}
        options: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "none"}
        async with (
            Consumer(**settings.source, **options) as ours,
            Consumer(**settings.target, **options) as copies,
        ):
            verifier = Verifier(settings, ours, copies, wait_ms / 1000)
            topics = {}
            for place, name in enumerate(names):
                copy = chosen.copy_of(name)

                def note_part(share: float, place: int = place) -> None:
                    note((place + share) / len(names))

                if copy not in theirs:
                    lacks = Difference(field=NO_TOPIC, upstream_offset=None, downstream_offset=None)
                    topics[name] = VerifiedTopic(
                        copy=copy, partitions={0: VerifiedPartition(difference=lacks)}
                    )
                    continue
                policies = await _policy(source, name) | await _policy(target, copy)
                topics[name] = await verifier.topic(
                    name, copy, is_compacted="compact" in policies, note=note_part
                )
    return Verified(topics=topics)


async def _policy(admin: Admin, topic: str) -> set[str]:
    configs = await admin.describe_configs("topic", topic)
    policy = configs.get("cleanup.policy")
    return set() if policy is None or policy.value is None else {*policy.value.split(",")}


class Reader(Protocol):
    """The methods of a read_committed Consumer that a comparison calls."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """See Consumer."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """See Consumer."""

    async def poll(self, timeout_ms: float = 0) -> Mapping[TopicPartition, list[ConsumerRecord]]:
        """See Consumer."""

    async def position(self, partition: TopicPartition) -> int:
        """See Consumer."""

    async def beginning_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """See Consumer."""

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See Consumer."""

    async def partitions_for(self, topic: str) -> list[int]:
        """See Consumer."""


class _Log:
    """The committed records of one partition on one side, below `end`.

    The consumer is assigned to this partition alone.
    """

    def __init__(self, consumer: Reader, place: TopicPartition, start: int, end: int) -> None:
        self._consumer: Final = consumer
        self._place: Final = place
        self.start: Final = start
        self.end = end
        self._position = start

    @classmethod
    async def open(cls, consumer: Reader, place: TopicPartition) -> "_Log":
        starts, ends = (
            await consumer.beginning_offsets([place]),
            await consumer.end_offsets([place]),
        )
        consumer.assign([place])
        return cls(consumer, place, starts[place], ends[place])

    @property
    def is_over(self) -> bool:
        return self._position >= self.end

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._place, offset)
        self._position = offset

    async def read(self) -> list[ConsumerRecord]:
        """Return the next records, [] at `end`. Raises KafkaError, also after a silent minute."""
        silent = 0.0
        while not self.is_over:
            polled = (await self._consumer.poll(_POLL_MS)).get(self._place, [])
            before, self._position = self._position, await self._consumer.position(self._place)
            records = [record for record in polled if record.offset < self.end]
            if records:
                return records
            silent = 0.0 if self._position > before else silent + _POLL_MS / 1000
            if silent >= _SILENT_S:
                text = f"{self._place}: no records from offset {self._position} on for a minute"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text, definite=True)
        return []

    async def extend(self) -> bool:
        """Move `end` to the log's present end; return whether there are more records to read."""
        self.end = (await self._consumer.end_offsets([self._place]))[self._place]
        return not self.is_over


async def _fill(comparison: InOrder, source: _Log) -> bool:
    """Add source records until a skipped record can be recognized; return False without any."""
    while len(comparison.source) < AHEAD and (records := await source.read()):
        comparison.source.extend(records)
    return bool(comparison.source)


class _Beginning(NamedTuple):
    """The records that each side has lost, and the offsets of the first records to compare."""

    removed_at_source: int
    removed_at_target: int
    source_offset: int
    target_offset: int


class _Patience:
    """How long the target may lack a record; it begins anew after progress."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s: Final = limit_s
        self._until_s: float | None = None

    def renew(self) -> None:
        self._until_s = None

    async def wait(self) -> bool:
        """Wait a moment; return False once the limit is reached."""
        now_s = asyncio.get_running_loop().time()
        if self._until_s is None:
            self._until_s = now_s + self._limit_s
        if now_s >= self._until_s:
            return False
        await asyncio.sleep(_LOOK_S)
        return True


class Verifier:
    """Compares topics, one partition after the other, with one reader for each side."""

    def __init__(
        self, settings: MirrorSettings, ours: Reader, copies: Reader, wait_s: float
    ) -> None:
        self._repeats: Final = not settings.exactly_once
        self._ours: Final = ours
        self._copies: Final = copies
        self._wait_s: Final = wait_s

    async def topic(self, name: str, copy: str, *, is_compacted: bool, note: Note) -> VerifiedTopic:
        """Compare all partitions of a topic with those of its copy. Raises KafkaError."""
        theirs = {*await self._copies.partitions_for(copy)}
        indexes = await self._ours.partitions_for(name)  # later: a copy grows after its topic
        found = {}
        for place, index in enumerate(indexes):
            note(place / len(indexes))
            if index not in theirs:
                lacks = Difference(field=NO_PARTITION, upstream_offset=None, downstream_offset=None)
                found[index] = VerifiedPartition(difference=lacks)
                continue
            source = await _Log.open(self._ours, TopicPartition(name, index))
            target = await _Log.open(self._copies, TopicPartition(copy, index))
            compare = self._newest if is_compacted else self._in_order
            found[index] = await compare(source, target)
        for index in sorted(theirs - {*indexes}):
            found[index] = await self._alone(TopicPartition(copy, index))
        note(1.0)
        return VerifiedTopic(copy=copy, compacted=is_compacted, partitions=found)

    async def _alone(self, place: TopicPartition) -> VerifiedPartition:
        """Return the result for a partition that the source does not have."""
        log = await _Log.open(self._copies, place)
        log.seek(log.start)
        records = await log.read()
        if not records:
            return VerifiedPartition()
        offset = records[0].offset
        extra = Difference(field=EXTRA, upstream_offset=None, downstream_offset=offset)
        return VerifiedPartition(difference=extra)

    # --- topics without compaction ---

    async def _in_order(self, source: _Log, target: _Log) -> VerifiedPartition:
        """Compare from each place where the comparison may begin; return the best result."""
        best: VerifiedPartition | None = None
        async for beginning in self._beginnings(source, target):
            comparison = InOrder(repeats=self._repeats)
            source.seek(source.start)
            while beginning.removed_at_target and (skipped := await source.read()):
                comparison.skip(one for one in skipped if one.offset < beginning.source_offset)
                if skipped[-1].offset >= beginning.source_offset:
                    break
            source.seek(beginning.source_offset)
            target.seek(beginning.target_offset)
            difference = await self._in_step(comparison, source, target)
            result = VerifiedPartition(
                compared=comparison.compared,
                repeated=comparison.repeated,
                removed_at_source=beginning.removed_at_source,
                removed_at_target=beginning.removed_at_target,
                digest=comparison.digest,
                difference=difference,
            )
            if difference is None:
                return result
            if best is None or result.compared > best.compared:
                best = result
        return best or VerifiedPartition()

    async def _beginnings(self, source: _Log, target: _Log) -> AsyncIterator[_Beginning]:
        """Yield where the comparison may begin, the beginning of both logs first."""
        yield _Beginning(0, 0, source.start, target.start)
        if target.start:
            places = self._places(target, source, are_copies=True, most=target.start)
            async for before, offset in places:
                yield _Beginning(0, before, offset, target.start)
        if source.start:
            most = None if self._repeats else source.start
            places = self._places(source, target, are_copies=False, most=most)
            async for before, offset in places:
                yield _Beginning(before, 0, source.start, offset)

    async def _places(
        self, wanted: _Log, within: _Log, *, are_copies: bool, most: int | None
    ) -> AsyncIterator[tuple[int, int]]:
        """Yield where the first records of one log lie in the other: records before it, offset.

        Without a first record, that is the end of the other log. `most`: the records that may lie
        before the place. The logs may be read meanwhile.
        """
        wanted.seek(wanted.start)
        first = await wanted.read()
        anchors = Anchors(first, are_copies=are_copies, repeats=self._repeats)
        position, tries = within.start, 0
        while tries < _ANCHORS_MAX and (most is None or anchors.passed <= most):
            within.seek(position)
            records = await within.read()
            if not records:
                break
            position = records[-1].offset + 1
            for before, offset in anchors.add(records):
                if before and (most is None or before <= most):
                    tries += 1
                    yield before, offset
        if not first and (most is None or anchors.seen <= most):
            yield anchors.seen, within.end

    async def _in_step(self, comparison: InOrder, source: _Log, target: _Log) -> Difference | None:
        """Compare both logs from their positions on; return the first difference."""
        patience = _Patience(self._wait_s)
        found = await self._until_dry(comparison, source, target, patience)
        while found is None and await _fill(comparison, source):
            if not await patience.wait():
                return comparison.missing()
            await target.extend()
            found = await self._until_dry(comparison, source, target, patience)
        if found is not None:
            return found
        await target.extend()  # all its records were in the source before
        await source.extend()
        return await self._until_dry(comparison, source, target, patience, is_last=True)

    async def _until_dry(
        self,
        comparison: InOrder,
        source: _Log,
        target: _Log,
        patience: _Patience,
        *,
        is_last: bool = False,
    ) -> Difference | None:
        """Compare until a side is read to its end; return the first difference.

        `is_last`: the target's records behind the source's end are extra.
        """
        while True:
            await _fill(comparison, source)
            if not comparison.target:
                comparison.target.extend(await target.read())
            before = comparison.compared
            found = comparison.compare(source_is_over=is_last and source.is_over)
            if comparison.compared > before:
                patience.renew()
            if found is not None or (not comparison.target and target.is_over):
                return found
            if not is_last and not comparison.source and source.is_over:
                return None

    # --- compacted topics ---

    async def _newest(self, source: _Log, target: _Log) -> VerifiedPartition:
        """Compare the newest records of all keys, in as many passes as their number requires."""
        passes = 1
        while True:
            try:
                results = [
                    await self._pass(source, target, Slice(index=index, of=passes))
                    for index in range(passes)
                ]
            except TooManyKeys:
                passes *= 2
                continue
            differences = [difference for _, difference in results if difference is not None]
            return VerifiedPartition(
                compared=sum(compared for compared, _ in results),
                difference=differences[0] if differences else None,
            )

    async def _pass(self, source: _Log, target: _Log, keys: Slice) -> tuple[int, Difference | None]:
        """Compare the newest records of some keys. Raises TooManyKeys."""
        newest = NewestByKey(keys)
        source.seek(source.start)
        while records := await source.read():
            newest.add(records)
        copied, later = NewestByKey(keys, end=newest.last), NewestByKey(keys)
        removals = Removals(at_source=source.start > 0, at_target=target.start > 0)
        patience = _Patience(self._wait_s)
        target.seek(target.start)
        while True:
            while records := await target.read():
                copied.add(records)
            await source.extend()  # after the target: all its records were in the source before
            while records := await source.read():
                later.add(records)
            behind = compare_behind(newest, copied, later, removals)
            is_whole = copied.has_end and behind is None
            if is_whole or newest.last is None or not await patience.wait():
                break
            if await target.extend() and not copied.has_end:
                patience.renew()
        if newest.last is None and later.last is not None:
            return 0, None  # its first records were written meanwhile
        compared, difference = compare_newest(newest, copied, removals)
        return compared, difference or behind

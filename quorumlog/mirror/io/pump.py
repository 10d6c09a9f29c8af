"""The loop of a session: poll the source, copy to the target, go on after lost positions."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from quorumlog import clock
from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction
from quorumlog.client import Consumer, ErrorCode, KafkaError, OffsetAndMetadata, TopicPartition
from quorumlog.client.errors import PositionLost, TopicDenied
from quorumlog.mirror.core.copies import UNKNOWN, Copies
from quorumlog.mirror.core.lost_positions import resume_after_loss
from quorumlog.mirror.core.position_records import Content, RecordKey
from quorumlog.mirror.core.selection import some_of, why_no_topic
from quorumlog.mirror.errors import MirrorRefused, TopicsStopped
from quorumlog.mirror.io.topics import GONE, TopicKeeper
from quorumlog.mirror.io.transfer import OwnRecord, Polled, TopicRefused, Transfer
from quorumlog.mirror.reports import OnReport, Report
from quorumlog.mirror.settings import MirrorSettings
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID

_POLL_MS: Final = 250
_FEW_RECORDS: Final = 1_000
_PAUSE_S: Final = 0.02  # after few records: a transaction for each would cost more than they do
_START_S: Final = 3.0
_RECREATED_MS: Final = 100  # between two looks at the metadata of a re-created topic
_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


@dataclass(slots=True)
class Progress:
    """Counts since the start of the mirror, and the goals of `once`.

    lag: records at the source after the positions. `goals`: the ends of the partitions when a
    mirror with `once` began; None before. `lacks_topics`: the source has no topic to copy yet.
    """

    records: int = 0
    size_in_bytes: int = 0
    lag: int = 0
    goals: dict[TopicPartition, int] | None = None
    lacks_topics: bool = False


class SessionOver(Exception):
    """The session cannot go on, but the next can, at once. `message_bytes`: bounds its batches."""

    def __init__(self, message_bytes: int | None = None) -> None:
        self.message_bytes: Final = message_bytes
        super().__init__()


@dataclass(slots=True)
class Pump:
    """The loop; it alone uses the consumer and the producers.

    is_stale: set to have the topics refreshed now.
    """

    settings: MirrorSettings
    consumer: Consumer
    keeper: TopicKeeper
    transfer: Transfer
    copies: Copies
    progress: Progress
    report: OnReport
    is_stale: asyncio.Event = field(default_factory=asyncio.Event)
    _owed: dict[RecordKey, Content] = field(default_factory=dict)
    _dropped: set[TopicPartition] = field(default_factory=set)  # polled, but not copied
    _retry_at_ms: float = inf  # assign again: a new partition had no leader
    _followed: int = -1  # `copies.changes` as of the assignment; -1: assign anew

    def owe(self, records: Iterable[OwnRecord]) -> None:
        """Have these records of the positions topic written with the next positions, or soon."""
        self._owed.update(records)

    def source_end(self, place: TopicPartition) -> int:
        """Return the high watermark at the source as of the last fetch; -1 if unknown."""
        try:
            return self.consumer.highwater(place)
        except KeyError:
            return -1

    async def run(self) -> None:
        """Copy for ever; with `once`, to the goals. Raises KafkaError, MirrorError, SessionOver."""
        while True:
            if self._followed != self.copies.changes or clock.monotonic_ms() >= self._retry_at_ms:
                async with self.keeper.lock:
                    await self._try_to_assign()
            polled = await self._poll()
            if polled:
                await self._copy(polled)
                if sum(map(len, polled.values())) < _FEW_RECORDS:
                    await asyncio.sleep(_PAUSE_S)
            elif self._owed:
                await self._note_skipped()
                await self.write_owed()
            if self.settings.once and await self._is_complete():
                return

    async def write_owed(self) -> None:
        """Write the owed records of the positions topic."""
        await self.transfer.write(self._take_owed())
        places = self.copies.active_partitions()
        self.progress.lag = sum(
            max(self.source_end(place) - self.copies.of(place).offset, 0) for place in places
        )

    def _take_owed(self) -> list[OwnRecord]:
        owed = [*self._owed.items()]
        self._owed.clear()
        return owed

    # --- the source ---

    async def _poll(self) -> Polled:
        try:
            return await self.consumer.poll(_POLL_MS, self.settings.poll_records)
        except KafkaError as error:
            await self._handle(error)
            return {}

    async def _position(self, place: TopicPartition) -> int | None:
        """Return the consumer's position; None if the source has just lost it."""
        try:
            return await self.consumer.position(place)
        except KafkaError as error:
            await self._handle(error)
            return None

    async def _handle(self, error: KafkaError) -> None:
        """Handle an error of the source; raise it if the session cannot go on."""
        if isinstance(error, PositionLost):
            await self._resume(error)
        elif isinstance(error, TopicDenied):
            self._stop_denied(error)
        elif error.code in _GONE:
            self.is_stale.set()
        else:
            raise error

    def _stop_denied(self, denied: TopicDenied) -> None:
        """Stop a topic that the user may not read; the others go on. Another attempt follows."""
        topic = self.copies.topics.get(denied.topic)
        if topic is None or not topic.is_active:
            return
        topic.refusals += 1
        backoff = Backoff(self.settings.refresh_interval_ms, self.settings.config_interval_ms)
        wait_ms = backoff.delay_ms(topic.refusals, random_fraction())
        reason = f"the source refuses its records: {denied}"
        self.copies.stop(topic.name, topic.copy, reason, clock.monotonic_ms() + wait_ms)
        if topic.refusals == 1:
            self.report(Report(topic.name, f"stopped: {reason}", is_loss=True))

    # --- records ---

    async def _copy(self, polled: Polled) -> None:
        async with self.keeper.lock:
            wanted = {place: one for place, one in polled.items() if self._is_copied(place)}
            self._dropped |= polled.keys() - wanted.keys()
            if not wanted:
                return
            try:
                size = await self.transfer.copy(wanted, self._take_owed())
            except TopicRefused as refused:
                await self._stop_refused(refused)
                raise SessionOver from refused
        self._note_readable(wanted)
        self.progress.records += sum(map(len, wanted.values()))
        self.progress.size_in_bytes += size

    def _note_readable(self, places: Iterable[TopicPartition]) -> None:
        """Report the topics of which the source refused the last attempts to read."""
        for name in {place.topic for place in places}:
            topic = self.copies.topics[name]
            if topic.refusals:
                topic.refusals = 0
                self.report(Report(name, "is copied again"))

    def _is_copied(self, place: TopicPartition) -> bool:
        """Return whether the partition is still active: the topics may have changed in a poll."""
        topic = self.copies.topics[place.topic]
        one = topic.partitions.get(place.partition)
        return topic.is_active and one is not None and one.offset != UNKNOWN

    async def _stop_refused(self, refused: TopicRefused) -> None:
        """Stop the topic; the next session copies the others. Raises SessionOver."""
        topic = self.copies.topics[refused.topic]
        limit = await self.keeper.message_bytes(topic.copy)
        if limit is not None and limit < self.transfer.batch_bytes:
            raise SessionOver(limit)
        retry_at_ms = clock.monotonic_ms() + self.settings.config_interval_ms
        if self.copies.stop(topic.name, topic.copy, refused.reason, retry_at_ms):
            self.report(Report(topic.name, f"stopped: {refused.reason}", is_loss=True))

    async def _note_skipped(self) -> None:
        """Owe the positions that have passed transactions' markers, or aborted records, alone."""
        for place in self.copies.active_partitions():
            if place not in self.consumer.assignment() or place in self._dropped:
                continue
            offset = await self._position(place)
            if offset is None or not self._is_copied(place):
                continue
            one = self.copies.of(place)
            if offset > one.offset:
                key, content = self.copies.position_record(place, offset, one.leader_epoch, ())
                self.copies.advance(place, offset, one.leader_epoch)
                self._owed[key] = content

    async def _is_complete(self) -> bool:
        """Return whether all that the source had at the start is copied, or its topic stopped."""
        active = {*self.copies.active_partitions()}
        for place, goal in list((self.progress.goals or {}).items()):
            topic = self.copies.topics[place.topic]
            if not topic.is_at_source:
                self.copies.stop(topic.name, topic.copy, GONE)
            elif place in active and place in self.consumer.assignment():
                offset = await self._position(place)
                if offset is None or offset < goal:
                    return False
        await self._note_skipped()
        return self._followed == self.copies.changes

    # --- partitions ---

    async def _try_to_assign(self) -> None:
        try:
            await self._assign()
        except TopicDenied as denied:
            self._stop_denied(denied)
            self._followed = -1

    async def _assign(self) -> None:
        """Read the active partitions, new partitions from their positions."""
        self._followed, self._retry_at_ms = self.copies.changes, inf
        wanted = self.copies.active_partitions()
        self._check_active(wanted)
        before = self.consumer.assignment()
        unknown = [one for one in wanted if self.copies.of(one).offset == UNKNOWN]
        found = await self._starts(unknown)
        for place, offset in found.items():
            self.copies.advance(place, offset, -1)
        if len(found) < len(unknown):
            wanted = [place for place in wanted if place in found or place not in unknown]
            self._retry_at_ms = clock.monotonic_ms() + self.settings.refresh_interval_ms
        kept = (before & {*wanted}) - {*unknown} - self._dropped
        self._dropped.clear()
        self.consumer.assign(sorted(kept))  # a topic that was created again is assigned anew
        ids = {topic.name: topic.ids.source for topic in self.copies}
        self.consumer.assign(
            wanted, {name: one for name, one in ids.items() if one != ZERO_TOPIC_ID}
        )
        for place in wanted:
            if place not in kept:
                self._seek(place)
        if self.settings.once:
            await self._set_goals(wanted, unknown)

    async def _starts(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log starts of the new partitions that have a leader now.

        A partition without a leader must not keep the others waiting.
        """

        async def within_the_time(some: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            try:
                async with asyncio.timeout(_START_S):
                    return await self.consumer.beginning_offsets(some)
            except TimeoutError:
                return {}
            except KafkaError as error:
                if error.passing or error.code in _GONE:
                    self.is_stale.set()
                    return {}
                raise

        if not places:
            return {}
        found = await within_the_time(places)
        if not found and len(places) > 1:
            answers = await asyncio.gather(*(within_the_time([one]) for one in places))
            found = {place: offset for answer in answers for place, offset in answer.items()}
        return found

    async def _set_goals(
        self, wanted: Sequence[TopicPartition], unknown: Sequence[TopicPartition]
    ) -> None:
        """Record where `once` ends; again for a topic that is copied from its start."""
        if self.progress.goals is None:
            self.progress.goals = await self.consumer.end_offsets(wanted)
        elif again := [place for place in unknown if place in self.progress.goals]:
            self.progress.goals |= await self.consumer.end_offsets(again)

    def _check_active(self, wanted: Sequence[TopicPartition]) -> None:
        """Raise TopicsStopped if no topic is left; with `once`, MirrorRefused if there is none.

        Without `once`, report that the mirror waits for its first topic, and the end of the wait.
        """
        names, stopped = self.keeper.names, self.copies.stopped()
        chosen = sorted({one.topic for one in wanted if not names.is_heartbeat(one.topic)})
        if chosen:
            if self.progress.lacks_topics:
                self.progress.lacks_topics = False
                self.report(Report("mirror", f"copies its first topics: {some_of(chosen)}"))
            return
        if stopped:
            raise TopicsStopped(stopped)
        reason = why_no_topic(self.settings.topics, self.keeper.names_at_source)
        if self.settings.once:
            raise MirrorRefused(
                f"{reason}; nothing was copied: change the expressions (--topic, --exclude), or"
                " give the user DESCRIBE on the topics"
            )
        if not self.progress.lacks_topics:
            self.progress.lacks_topics = True
            seconds = self.settings.refresh_interval_ms / 1000
            message = f"{reason}; the mirror waits, and searches again every {seconds:g} s"
            self.report(Report("mirror", message, is_loss=True))

    def _seek(self, place: TopicPartition) -> None:
        one = self.copies.of(place)
        self.consumer.seek(place, OffsetAndMetadata(one.offset, one.leader_epoch))

    async def _resume(self, lost: PositionLost) -> None:
        """Go on after a position that the source does not have, and report it."""
        place = lost.topic_partition
        if place not in self.consumer.assignment():
            return
        topic = self.copies.topics[place.topic]
        if ZERO_TOPIC_ID != lost.topic_id != topic.ids.source:
            await self.keeper.refresh()
            self._followed = -1
            if topic.is_active and self.copies.topics[place.topic].ids.source != lost.topic_id:
                self.consumer.assign(self.consumer.assignment() - {place})
                await asyncio.sleep(_RECREATED_MS / 1000)  # the metadata lags behind the fetch
            return
        try:
            start = (await self.consumer.beginning_offsets([place]))[place]
            end = await self.keeper.end_at_source(place)
        except KafkaError as error:
            self._dropped.add(place)  # so that `_assign` seeks again
            self._followed = -1
            await self._handle(error)
            return
        if not self._is_copied(place):
            return
        offset = self.copies.of(place).offset
        resumption = resume_after_loss(offset, start, end, lost.truncated_to)
        self.report(Report(str(place), resumption.message, is_loss=True))
        key, content = self.copies.position_record(place, resumption.offset, -1, ())
        self.copies.advance(place, resumption.offset, -1)
        self._owed[key] = content
        if self.progress.goals and place in self.progress.goals:
            self.progress.goals[place] = min(self.progress.goals[place], max(end, start))
        self._seek(place)

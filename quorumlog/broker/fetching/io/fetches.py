"""Fetches: reads, and long polls that are parked until there is enough to answer.

What wakes a parked fetch is only noted when it happens, and looked at once per turn of the event
loop: several produces then share one answer, and nothing is sent from within an append.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from quorumlog.broker.clocks import monotonic_ms
from quorumlog.broker.deadline_timer import DeadlineTimer
from quorumlog.broker.fetching.core.fetch_sessions import FetchSession, FetchSessions
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.core.response_memory import ResponseMemory
from quorumlog.broker.fetching.io.parked_fetch import (
    FetchAnswers,
    ParkedFetch,
    Progress,
    of_interest,
)
from quorumlog.broker.fetching.io.session_answers import drop_settled, news_of
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import FetchedPartition, PartitionFetch
from quorumlog.broker.partitions.core.effects import AnswerFetch
from quorumlog.broker.partitions.core.news import News
from quorumlog.broker.partitions.core.purgatory import FetchPurgatory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.storage.errors import OffsetOutOfRange, StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

AnswerT = TypeVar("AnswerT")


class Fetches:
    """Every fetch of this broker. `error_for_missing`: what to say of a partition not here.

    A fetch with an account reads only what `memory` has room for. One that finds no room is parked
    until there is some, in the order of arrival; those that are parked with records meanwhile are
    answered, so that no fetch waits for another.
    """

    def __init__(
        self,
        drivers: Mapping[TopicPartition, PartitionDriver],
        error_for_missing: Callable[[TopicPartition], ErrorCode],
        memory: ResponseMemory,
        sessions: FetchSessions,
    ) -> None:
        self._drivers: Final = drivers
        self._memory: Final = memory
        memory.on_room = self._look_soon
        self._sessions: Final = sessions
        sessions.on_closed = self._end_waiting
        self._starved: dict[ParkedFetch, None] = {}  # found no room, in order
        self._holding: dict[ParkedFetch, None] = {}  # of consumers, with records
        self._error_for_missing: Final = error_for_missing
        self._purgatory: Final[FetchPurgatory[ParkedFetch]] = FetchPurgatory()
        self._timer: Final = DeadlineTimer(self._purgatory.deadlines, self._expire)
        self._news: dict[TopicPartition, News] = {}
        self._is_look_due = False

    def fetch(
        self, spec: FetchSpec, render: Callable[[FetchAnswers], AnswerT]
    ) -> AnswerT | asyncio.Future[AnswerT]:
        """Answer now, or return a future. Cancel it if nobody wants the answer any more."""
        if spec.session is not None:
            self._end_waiting(spec.session)
        now_ms = monotonic_ms()
        progress = [Progress(partition.fetch_offset) for partition in spec.partitions]
        for partition, so_far in zip(spec.partitions, progress, strict=True):
            if spec.session is None or spec.session.take_to_judge(partition):
                self._judge(spec, partition, so_far, now_ms)
        # All are judged first: what a follower holds in one partition is counted even if another
        # fills the answer.
        has_room = not (self._starved and spec.account) and self._read(spec, progress)
        if spec.max_wait_ms <= 0 or self._is_enough(spec, progress):
            return render(self._answers(spec, progress))
        if has_room:
            drop_settled(spec, progress, self._drivers)
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()

        def answer(answers: FetchAnswers) -> None:
            if not future.done():
                future.set_result(render(answers))

        parked = ParkedFetch(now_ms + spec.max_wait_ms, spec, progress, answer)
        if self._purgatory.park(parked):
            self._timer.arm(parked.deadline_ms)
        if spec.session is not None:
            spec.session.waiting = parked
        self._note_held(parked, has_room=has_room)
        future.add_done_callback(lambda _: self._end(parked))
        return future

    def tell(self, topic_partition: TopicPartition, news: News) -> None:
        """Note what happened; parked fetches are looked at in the next turn of the loop."""
        is_awaited = self._sessions.note(topic_partition, must_judge=bool(news & News.CHANGED))
        if not is_awaited and not self._purgatory.has_waiting(topic_partition):
            return
        self._news[topic_partition] = self._news.get(topic_partition, News(0)) | news
        self._look_soon()

    def stop(self) -> None:
        """Answer everybody with what there is."""
        self._timer.stop()
        deadline_ms = self._purgatory.deadlines.next_deadline_ms()
        while deadline_ms is not None:
            self._expire(deadline_ms)
            deadline_ms = self._purgatory.deadlines.next_deadline_ms()

    # --- One partition of one fetch ---

    def _judge(
        self, spec: FetchSpec, partition: PartitionFetch, so_far: Progress, now_ms: int
    ) -> None:
        """Let the partition judge a fetch on arrival; a follower's is counted."""
        driver = self._find(partition, so_far)
        if driver is None:
            return
        if not spec.is_from_follower:
            self._take(so_far, self._judge_read(spec, driver, partition))
        else:
            fetched = events.FollowerFetched(
                broker_id=spec.replica_id,
                broker_epoch=spec.replica_epoch,
                leader_epoch=partition.leader_epoch,
                fetch_offset=partition.fetch_offset,
                last_fetched_epoch=partition.last_fetched_epoch,
                log_start_offset=partition.log_start_offset,
            )
            self._take(so_far, driver.judge_follower_fetch(now_ms, fetched))

    def _find(self, partition: PartitionFetch, so_far: Progress) -> PartitionDriver | None:
        """Return the replica that is asked for, or say why there is none."""
        driver = self._drivers.get(partition.topic_partition)
        if partition.error_code is not ErrorCode.NONE:
            so_far.error_code = partition.error_code
        elif driver is None:
            so_far.error_code = self._error_for_missing(partition.topic_partition)
        elif partition.topic_id is not None and partition.topic_id != driver.topic_id:
            so_far.error_code = ErrorCode.UNKNOWN_TOPIC_ID  # deleted, and made again by this name
        else:
            return driver
        return None

    def _judge_read(
        self, spec: FetchSpec, driver: PartitionDriver, partition: PartitionFetch
    ) -> AnswerFetch:
        return driver.partition.serving.judge_read(
            partition.leader_epoch,
            partition.fetch_offset,
            partition.last_fetched_epoch,
            leader_only=spec.is_leader_only,
        )

    def _take(self, so_far: Progress, verdict: AnswerFetch) -> None:
        so_far.error_code, so_far.diverging = verdict.error_code, verdict.diverging
        if so_far.is_final:
            so_far.chunks, so_far.size = [], 0

    def _read(
        self,
        spec: FetchSpec,
        progress: list[Progress],
        news: Mapping[TopicPartition, News] | None = None,
    ) -> bool:
        """Read on in the order asked for, within all limits of bytes; False: there was no room.

        With `news`, only the partitions in it.
        """
        size = sum(so_far.size for so_far in progress)
        most = spec.max_bytes
        if spec.account is not None:
            share = self._memory.share()
            if share == 0:
                return False
            most = min(most, size + share)
        for partition, so_far in zip(spec.partitions, progress, strict=True):
            if not so_far.is_final and (news is None or partition.topic_partition in news):
                size += self._read_on(spec, partition, so_far, size, most)
        return True

    def _read_on(
        self,
        spec: FetchSpec,
        partition: PartitionFetch,
        so_far: Progress,
        size: int,
        most: int,
    ) -> int:
        """Read what has come since; return its size. `size` of `most` bytes are read already.

        The very first batch may exceed the limits.
        """
        driver = self._drivers.get(partition.topic_partition)
        limit = min(partition.max_bytes - so_far.size, most - size)
        if driver is None or (limit <= 0 and size > 0):
            return 0
        try:
            chunks, read_bytes, next_offset = driver.read(
                so_far.next_offset,
                max_bytes=max(limit, 0),
                end=spec.read_end,
                at_least_one=size == 0,
            )
        except OffsetOutOfRange:
            so_far.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return 0
        except StorageError:
            so_far.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return 0
        so_far.chunks += chunks
        so_far.size += read_bytes
        so_far.next_offset = Offset(next_offset)
        if spec.account is not None:
            spec.account.take(read_bytes)
        return read_bytes

    def _is_enough(self, spec: FetchSpec, progress: list[Progress]) -> bool:
        if any(so_far.is_final for so_far in progress):
            return True
        if not progress:
            return spec.session is None
        return sum(so_far.size for so_far in progress) >= spec.min_bytes

    def _answers(self, spec: FetchSpec, progress: list[Progress]) -> FetchAnswers:
        answers = [
            self._answer(partition, so_far)
            for partition, so_far in zip(spec.partitions, progress, strict=True)
        ]
        return answers if spec.session is None else news_of(spec, progress, answers, self._drivers)

    def _answer(self, fetch: PartitionFetch, so_far: Progress) -> FetchedPartition:
        driver = self._drivers.get(fetch.topic_partition)
        if driver is None or fetch.error_code is not ErrorCode.NONE:
            return FetchedPartition(so_far.error_code)
        partition = driver.partition
        return FetchedPartition(
            so_far.error_code,
            partition.state.high_watermark,
            partition.state.log_start_offset,
            so_far.chunks,
            so_far.diverging,
            partition.state.leader_id,
            partition.state.leader_epoch,
        )

    # --- Parked fetches ---

    def _look_soon(self) -> None:
        if not self._is_look_due:
            self._is_look_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_look_due = False
        news, self._news = self._news, {}
        touched: dict[ParkedFetch, bool] = {}  # whether it is answered whatever it has
        for topic_partition, what in news.items():
            for parked in self._waiting_on(topic_partition):
                new = what & of_interest(parked.spec)
                if new:
                    touched[parked] = touched.get(parked, False) or bool(new & News.LOG_START)
        starved, self._starved = self._starved, {}
        for parked in (*starved, *(one for one in touched if one not in starved)):
            if parked.is_over:
                continue  # answered meanwhile, because one before it found no room
            self._judge_changed(parked, news)
            is_starved = parked in starved
            has_room = self._read(parked.spec, parked.progress, None if is_starved else news)
            if touched.get(parked, False) or self._is_enough(parked.spec, parked.progress):
                self._finish(parked)
            else:
                self._note_held(parked, has_room=has_room)

    def _waiting_on(self, topic_partition: TopicPartition) -> list[ParkedFetch]:
        """Return the fetches that wait for this partition; it is among those they look at."""
        parked = self._purgatory.waiting_on(topic_partition)
        for session in self._sessions.watching(topic_partition):
            waiting = session.waiting
            if isinstance(waiting, ParkedFetch):
                waiting.join(session.by_partition[topic_partition].fetch)
                parked.append(waiting)
        return parked

    def _note_held(self, parked: ParkedFetch, *, has_room: bool) -> None:
        """Remember which parked fetches hold memory, and which wait for it."""
        if not has_room:
            self._starved[parked] = None
        elif parked.spec.account is not None and parked.spec.account.held:
            self._holding[parked] = None
        if self._starved:
            for one in [*self._holding]:
                self._finish(one)  # with less than it asked for: its client makes room

    def _judge_changed(self, parked: ParkedFetch, news: Mapping[TopicPartition, News]) -> None:
        """Start changed partitions anew: what was read may be another leader's past by now."""
        for index, partition in enumerate(parked.spec.partitions):
            if news.get(partition.topic_partition, News(0)) & News.CHANGED:
                if parked.spec.account is not None:
                    parked.spec.account.take(-parked.progress[index].size)
                if parked.spec.session is not None:
                    parked.spec.session.take_to_judge(partition)
                so_far = parked.progress[index] = Progress(partition.fetch_offset)
                driver = self._find(partition, so_far)
                if driver is not None:
                    self._take(so_far, self._judge_read(parked.spec, driver, partition))

    def _expire(self, now_ms: int) -> None:
        for parked in self._purgatory.expire(now_ms):
            self._finish(parked)

    def _end_waiting(self, session: FetchSession) -> None:
        """Answer the fetch of this session that waits: another takes its place, or none can."""
        if isinstance(session.waiting, ParkedFetch):
            self._finish(session.waiting)

    def _end(self, parked: ParkedFetch) -> None:
        self._purgatory.end(parked)
        session = parked.spec.session
        if session is not None and session.waiting is parked:
            session.waiting = None
        self._starved.pop(parked, None)
        self._holding.pop(parked, None)

    def _finish(self, parked: ParkedFetch) -> None:
        self._end(parked)
        if parked.spec.session is not None:
            for partition in parked.spec.session.judged():
                parked.join(partition.fetch)
        parked.answer(self._answers(parked.spec, parked.progress))

"""Fetches: reads, and long polls that are parked until there is enough to answer.

What wakes a parked fetch is only noted when it happens, and looked at once per turn of the event
loop: several produces then share one answer, and nothing is sent from within an append.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import IntFlag
from typing import Final, TypeVar

from quorumlog.broker.core import events
from quorumlog.broker.core.data_path import (
    DivergingEpoch,
    FetchedPartition,
    FetchSpec,
    PartitionFetch,
    ReadEnd,
)
from quorumlog.broker.core.effects import AnswerFetch
from quorumlog.broker.core.purgatory import FetchPurgatory, WaitingFetch
from quorumlog.broker.io.deadline_timer import DeadlineTimer, monotonic_ms
from quorumlog.broker.io.partition_driver import PartitionDriver
from quorumlog.storage.errors import OffsetOutOfRange, StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

FetchAnswers = list[FetchedPartition]
Chunk = bytes | bytearray | memoryview
AnswerT = TypeVar("AnswerT")


class News(IntFlag):
    """What has happened to a partition since its parked fetches were last looked at."""

    APPENDED = 1  # of interest to followers
    COMMITTED = 2  # of interest to consumers
    CHANGED = 4  # leader, epoch or existence: of interest to all


def _of_interest(spec: FetchSpec) -> News:
    if spec.read_end is ReadEnd.HIGH_WATERMARK:
        return News.COMMITTED | News.CHANGED
    # A follower, which a debugging consumer may read, learns with its records what is committed.
    committed = News(0) if spec.is_leader_only else News.COMMITTED
    return News.APPENDED | News.CHANGED | committed


class _Progress:
    """How far one partition of a fetch has come."""

    __slots__ = ("chunks", "diverging", "error_code", "next_offset", "size")

    def __init__(self, fetch_offset: Offset) -> None:
        self.error_code = ErrorCode.NONE
        self.diverging: DivergingEpoch | None = None
        self.chunks: list[Chunk] = []
        self.size = 0
        self.next_offset = fetch_offset

    @property
    def is_final(self) -> bool:
        return self.error_code is not ErrorCode.NONE or self.diverging is not None


class ParkedFetch(WaitingFetch):
    """A long poll that has not enough yet."""

    __slots__ = ("answer", "progress", "spec")

    def __init__(
        self,
        deadline_ms: int,
        spec: FetchSpec,
        progress: list[_Progress],
        answer: Callable[[FetchAnswers], None],
    ) -> None:
        super().__init__(deadline_ms, [partition.topic_partition for partition in spec.partitions])
        self.spec = spec
        self.progress = progress
        self.answer = answer


class Fetches:
    """Every fetch of this broker. `error_for_missing`: what to say of a partition not here."""

    def __init__(
        self,
        drivers: Mapping[TopicPartition, PartitionDriver],
        error_for_missing: Callable[[TopicPartition], ErrorCode],
    ) -> None:
        self._drivers: Final = drivers
        self._error_for_missing: Final = error_for_missing
        self._purgatory: Final[FetchPurgatory[ParkedFetch]] = FetchPurgatory()
        self._timer: Final = DeadlineTimer(self._purgatory.deadlines, self._expire)
        self._news: dict[TopicPartition, News] = {}
        self._is_look_due = False

    def fetch(
        self, spec: FetchSpec, render: Callable[[FetchAnswers], AnswerT]
    ) -> AnswerT | asyncio.Future[AnswerT]:
        """Answer now, or return a future. Cancel it if nobody wants the answer any more."""
        now_ms = monotonic_ms()
        progress = [_Progress(partition.fetch_offset) for partition in spec.partitions]
        for partition, so_far in zip(spec.partitions, progress, strict=True):
            self._judge(spec, partition, so_far, now_ms)
        # All are judged first: what a follower holds in one partition is counted even if another
        # fills the answer.
        self._read_all(spec, progress)
        if spec.max_wait_ms <= 0 or self._is_enough(spec, progress):
            return render(self._answers(spec, progress))
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()

        def answer(answers: FetchAnswers) -> None:
            if not future.done():
                future.set_result(render(answers))

        parked = ParkedFetch(now_ms + spec.max_wait_ms, spec, progress, answer)
        if self._purgatory.park(parked):
            self._timer.arm(parked.deadline_ms)
        future.add_done_callback(lambda _: self._purgatory.end(parked))
        return future

    def tell(self, topic_partition: TopicPartition, news: News) -> None:
        """Note what happened; parked fetches are looked at in the next turn of the loop."""
        if not self._purgatory.has_waiting(topic_partition):
            return
        self._news[topic_partition] = self._news.get(topic_partition, News(0)) | news
        if not self._is_look_due:
            self._is_look_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def stop(self) -> None:
        """Answer everybody with what there is."""
        self._timer.stop()
        deadline_ms = self._purgatory.deadlines.next_deadline_ms()
        while deadline_ms is not None:
            self._expire(deadline_ms)
            deadline_ms = self._purgatory.deadlines.next_deadline_ms()

    # --- One partition of one fetch ---

    def _judge(
        self, spec: FetchSpec, partition: PartitionFetch, so_far: _Progress, now_ms: int
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
            )
            self._take(so_far, driver.judge_follower_fetch(now_ms, fetched))

    def _find(self, partition: PartitionFetch, so_far: _Progress) -> PartitionDriver | None:
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
        return driver.partition.judge_read(
            partition.leader_epoch,
            partition.fetch_offset,
            partition.last_fetched_epoch,
            leader_only=spec.is_leader_only,
        )

    def _take(self, so_far: _Progress, verdict: AnswerFetch) -> None:
        so_far.error_code, so_far.diverging = verdict.error_code, verdict.diverging
        if so_far.is_final:
            so_far.chunks, so_far.size = [], 0

    def _read_all(self, spec: FetchSpec, progress: list[_Progress]) -> None:
        """Read on where there is more, in the order asked for, within both limits of bytes."""
        size = sum(so_far.size for so_far in progress)
        for partition, so_far in zip(spec.partitions, progress, strict=True):
            if not so_far.is_final:
                size += self._read_on(spec, partition, so_far, size)

    def _read_on(
        self, spec: FetchSpec, partition: PartitionFetch, so_far: _Progress, size: int
    ) -> int:
        """Read what has come since; return its size. The very first batch may exceed limits."""
        driver = self._drivers.get(partition.topic_partition)
        limit = min(partition.max_bytes - so_far.size, spec.max_bytes - size)
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
        return read_bytes

    def _is_enough(self, spec: FetchSpec, progress: list[_Progress]) -> bool:
        if not progress or any(so_far.is_final for so_far in progress):
            return True
        return sum(so_far.size for so_far in progress) >= spec.min_bytes

    def _answers(self, spec: FetchSpec, progress: list[_Progress]) -> FetchAnswers:
        return [
            self._answer(partition, so_far)
            for partition, so_far in zip(spec.partitions, progress, strict=True)
        ]

    def _answer(self, fetch: PartitionFetch, so_far: _Progress) -> FetchedPartition:
        driver = self._drivers.get(fetch.topic_partition)
        if driver is None or fetch.error_code is not ErrorCode.NONE:
            return FetchedPartition(so_far.error_code)
        partition = driver.partition
        return FetchedPartition(
            so_far.error_code,
            partition.high_watermark,
            partition.log_start_offset,
            so_far.chunks,
            so_far.diverging,
            partition.leader_id,
            partition.leader_epoch,
        )

    # --- Parked fetches ---

    def _look(self) -> None:
        self._is_look_due = False
        news, self._news = self._news, {}
        touched: dict[ParkedFetch, None] = {}
        for topic_partition, what in news.items():
            for parked in self._purgatory.waiting_on(topic_partition):
                if what & _of_interest(parked.spec):
                    touched[parked] = None
        for parked in touched:
            self._judge_changed(parked, news)
            self._read_touched(parked, news)
            if self._is_enough(parked.spec, parked.progress):
                self._finish(parked)

    def _judge_changed(self, parked: ParkedFetch, news: Mapping[TopicPartition, News]) -> None:
        """Start changed partitions anew: what was read may be another leader's past by now."""
        for index, partition in enumerate(parked.spec.partitions):
            if news.get(partition.topic_partition, News(0)) & News.CHANGED:
                so_far = parked.progress[index] = _Progress(partition.fetch_offset)
                driver = self._find(partition, so_far)
                if driver is not None:
                    self._take(so_far, self._judge_read(parked.spec, driver, partition))

    def _read_touched(self, parked: ParkedFetch, news: Mapping[TopicPartition, News]) -> None:
        size = sum(so_far.size for so_far in parked.progress)
        for partition, so_far in zip(parked.spec.partitions, parked.progress, strict=True):
            if partition.topic_partition in news and not so_far.is_final:
                size += self._read_on(parked.spec, partition, so_far, size)

    def _expire(self, now_ms: int) -> None:
        for parked in self._purgatory.expire(now_ms):
            self._finish(parked)

    def _finish(self, parked: ParkedFetch) -> None:
        self._purgatory.end(parked)
        parked.answer(self._answers(parked.spec, parked.progress))

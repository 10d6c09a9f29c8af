"""The driver of one replica's core, log and waiting producers: feeds events, performs effects.

It makes no decisions and has no tasks and no lock. All code runs on the event loop's thread, except
a truncation of the log, which is work for the disk queue. Until it is done, events for the core
wait, so that the core handles one at a time. Only a follower's log is ever truncated.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, assert_never

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.events import Event
from quorumlog.broker.partitions.core.fetch_wakeup import FetchWakeup
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.tail import Tail, TailRead
from quorumlog.broker.partitions.core.traffic import TopicTraffic
from quorumlog.broker.partitions.core.waiting_requests import WaitingRequests
from quorumlog.broker.partitions.log import loaded_log
from quorumlog.broker.partitions.log.dependencies import PartitionDependencies
from quorumlog.invariants import InvariantViolation, require
from quorumlog.storage.core.append_checks import LeaderBatch, usual_copies
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader, restamp
from quorumlog.wire.codec.transaction_markers import TransactionMarker, marked_headers

_APPENDED: Final = FetchWakeup.APPENDED  # an attribute of an enum costs a call
_COMMITTED: Final = FetchWakeup.COMMITTED
_new_tuple: Final = tuple.__new__  # the class of a NamedTuple costs three times as much
_logger: Final = logging.getLogger(__name__)


class PartitionDriver:
    """The driver of one replica on this broker."""

    __slots__ = (
        "_around",
        "_flusher",
        "_held",
        "_tail",
        "is_moving",
        "is_swapping_log",
        "is_truncating",
        "log",
        "partition",
        "producers",
        "topic_id",
        "topic_partition",
        "traffic",
        "waiting",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        *,
        partition: Partition,
        log: Log,
        producers: ProducerStates,
        waiting: WaitingRequests,
        traffic: TopicTraffic,
        around: PartitionDependencies,
    ) -> None:
        self.topic_partition: Final = topic_partition
        self.topic_id: Final = topic_id
        self.partition: Final = partition
        self.log = log  # replaced after a move to another log directory
        self.producers = producers  # replaced after a truncation
        producers.transactions.committed_to(partition.state.high_watermark)
        self.waiting: Final = waiting
        self.traffic: Final = traffic
        self.is_truncating = False  # a thread has the log: neither read it nor append
        self.is_swapping_log = False  # for a log with the same records: `is_truncating`, too
        self.is_moving = False  # to another log directory: it is not compacted meanwhile
        self._held: Final[deque[Callable[[], object]]] = deque()  # until the thread is done
        self._around: Final = around
        self._tail: Final = Tail()
        self._flusher: Final = around.new_flusher(
            topic_partition, log, around.flushes, flushed=self._flushed, failed=self._not_flushed
        )

    def feed(self, now_ms: int, event: Event) -> None:
        """Feed an event to the core and perform its effects. `now_ms` is monotonic.

        While a thread has the log, the event waits, in order.
        """
        if self.is_truncating:
            self._held.append(partial(self.feed, now_ms, event))
            return
        self._perform(now_ms, self.partition.step(now_ms, event))
        self.waiting.maybe_complete_deletions()

    def judge_follower_fetch(self, now_ms: int, event: events.FollowerFetched) -> AnswerFetch:
        """Feed a follower's fetch, perform its effects, and return the response."""
        if self.is_swapping_log:
            self.hold(lambda: self.judge_follower_fetch(self._around.now_ms(), event))
        if self.is_truncating:  # no records can be read now
            return self.partition.serving.judge_follower(event)
        ordered = self.partition.step(now_ms, event)
        answer = ordered[-1]
        if len(ordered) > 1:
            self._perform(now_ms, ordered[:-1])
        self.waiting.maybe_complete_deletions()
        if not isinstance(answer, AnswerFetch):
            raise InvariantViolation("a fetch is answered last")
        return answer

    def hold(self, call: Callable[[], object]) -> None:
        """Queue a call until the thread that has the log is done."""
        self._held.append(call)

    def append_as_leader(
        self,
        batches: Sequence[LeaderBatch],
        *,
        now_ms: int,
        wall_ms: int,
        marker: TransactionMarker | None = None,
    ) -> tuple[list[int], int]:
        """Append checked batches by one write and one step.

        Return the base offset of each, and the offset behind the last. `marker`: the content of a
        single control batch. The last batches are left out if a segment must roll for them. Raises
        StorageError; the log is then unchanged.
        """
        state, log = self.partition.state, self.log
        base_offsets: list[int] = []
        append = log.append_run(batches, leader_epoch=state.leader_epoch, wall_ms=wall_ms)
        next_offset = append.first_offset
        if next_offset == log.active_base_offset:
            self._keep_producers(next_offset)
        has_followers = state.has_followers
        if has_followers:
            self._tail.forget_below(state.high_watermark)
        for (records, header), (last_offset, _, _) in zip(batches, append.spans, strict=False):
            base_offsets.append(next_offset)
            if header.producer_id >= 0:
                self._record(header, next_offset, wall_ms, marker)
            if has_followers:
                self._note_recent(records, header, next_offset)
            next_offset = last_offset + 1
        traffic = self.traffic
        traffic.produce_requests += len(base_offsets)
        traffic.messages_in += next_offset - append.first_offset
        traffic.bytes_in += append.size
        self._around.readers.note_change(self.topic_partition, _APPENDED)
        self._perform(now_ms, self.partition.appended(now_ms, Offset(next_offset)))
        self._maybe_flush()
        return base_offsets, next_offset

    def _note_recent(self, records: Buffer, header: BatchHeader, base_offset: int) -> None:
        stamped = bytearray(records)
        epoch = self.partition.state.leader_epoch
        restamp(stamped, 0, base_offset=base_offset, leader_epoch=epoch)
        self._tail.append(base_offset, base_offset + header.last_offset_delta + 1, stamped)

    def append_as_follower(
        self,
        records: Buffer,
        *,
        leader_epoch: Epoch,
        high_watermark: Offset,
        log_start_offset: Offset,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        """Append the records of a fetch response; apply the leader's high watermark and log start.

        Raises CorruptBatch, UnexpectedOffset, RecordsTooLarge, StorageError: the log is unchanged.
        """
        require(not self.is_truncating, "no append during a truncation")
        if records:
            usual = usual_copies(
                records,
                next_offset=self.log.log_end_offset,
                leader_epoch=leader_epoch,
                latest_epoch=self.log.epochs.latest_epoch,
            )
            if usual is None:
                batches = marked_headers(records)
                headers = [(position, header) for position, header, _ in batches]
                append = self.log.append_as_follower(records, headers, leader_epoch=leader_epoch)
            else:
                append, unmarked = usual
                batches = marked_headers(records, unmarked)
                self.log.append_checked(append)
            if append.size and append.first_offset == self.log.active_base_offset:
                self._keep_producers(append.first_offset)
            for position, header, marker in batches:
                # Later batches were left out.
                if header.producer_id >= 0 and position < append.size:
                    self._record(header, header.base_offset, wall_ms, marker)
            self.traffic.replication_bytes_in += append.size
        fields = leader_epoch, self.log.log_end_offset, high_watermark, log_start_offset
        self.feed(now_ms, _new_tuple(events.LeaderAnswered, fields))
        self._maybe_flush()

    def _record(
        self, header: BatchHeader, offset: int, wall_ms: int, marker: TransactionMarker | None
    ) -> None:
        aborted = self.producers.record(header, offset, wall_ms, marker)
        if aborted is not None:
            self.log.aborted.add(aborted)

    def _keep_producers(self, offset: int) -> None:
        """Keep a producer snapshot at a segment's start: a start of the broker reads on from it."""
        work = loaded_log.work_to_spare_reads(self.log, self.producers, Offset(offset))
        self._around.disk.submit(self.topic_partition, work, lambda _: None)

    def roll(self) -> None:
        """Begin a segment at the log end, unless the active one is empty. Raises StorageError."""
        end = self.log.log_end_offset
        if self.log.active_base_offset < end:
            self.log.roll(end)
            self._keep_producers(end)

    def work_to_keep_producers(self) -> Callable[[], None]:
        """Return disk work that keeps a producer snapshot at the current log end."""
        return loaded_log.work_to_keep(self.log, self.producers, self.log.log_end_offset)

    def close(self) -> None:
        """Close the log cleanly; the replica is no longer in use. Raises StorageError."""
        loaded_log.work_to_spare_reads(self.log, self.producers, self.log.log_end_offset)()
        self.log.close()

    def read(
        self,
        offset: Offset,
        *,
        max_bytes: int,
        end: ReadEnd,
        at_least_one: bool,
        may_wait: bool,
        may_lend: bool = False,
    ) -> TailRead:
        """Read whole batches from `offset` on. Raises the errors of `Log.read`.

        With `may_lend`, committed batches may be a FileRange, alone.
        Returns no batches while a thread has the log; a CHANGED wakeup follows when it is done.
        """
        if self.is_truncating:
            return TailRead([], 0, offset)
        end_offset = self.end(end)
        if offset == end_offset and self.log.failure is None:
            return TailRead([], 0, offset)  # the usual result
        recent = self._tail.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )
        if recent is not None:
            return recent
        records, next_offset = self.log.read(
            offset,
            max_bytes=max_bytes,
            end_offset=end_offset,
            at_least_one=at_least_one,
            may_wait=may_wait,
            lend_below=self.partition.state.high_watermark if may_lend else 0,
        )
        return TailRead([records] if records else [], len(records), next_offset)

    def ends_at(self, offset: Offset) -> bool:
        """Whether a read to the log's end returns no records from `offset` on, and no error."""
        return offset == self.partition.state.log_end_offset and self.log.failure is None

    def read_newest(self, offset: Offset, max_bytes: int) -> TailRead | None:
        """Read the batches from `offset` to the log's end, if they are in memory and not too large.

        None: `read` has to read them, or there are none.
        """
        end_offset = self.partition.state.log_end_offset
        if self.is_truncating or offset == end_offset:
            return None
        return self._tail.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=True
        )

    def end(self, end: ReadEnd) -> Offset:
        """Return the offset (exclusive) where a read to this end stops."""
        offset = self.partition.serving.read_end(end)
        if end is not ReadEnd.LAST_STABLE:
            return offset
        start = self.partition.state.log_start_offset
        return Offset(self.producers.transactions.last_stable_offset(start, offset))

    def maybe_fail(self, refusal: StorageError | None = None) -> None:
        """Take the replica offline if its log is unusable.

        The `refusal` of an append is enough if the broker has other working directories.
        """
        failure = None if self.is_swapping_log else self.log.failure
        if failure is None and refusal is not None and not isinstance(refusal, DiskExhausted):
            failure = refusal if self._around.has_other_directories() else None
        if failure is not None:
            self._around.failed(self, failure)

    def note_tick(self, now_ms: int) -> None:
        """Feed `Ticked` to a leader, unless it would change no state; flush if it is due."""
        log, state = self.log, self.partition.state
        if log.failure is not None:
            self.maybe_fail()
        if self.is_swapping_log:
            return
        is_flushed_by_itself = state.acks_after_flush or log.settings.is_flushed_by_itself
        if is_flushed_by_itself and self._flusher.note_tick(now_ms):
            self._maybe_flush()  # again, after a failed flush
        if state.is_leader:
            self._tail.forget_below(state.high_watermark)
            if self.partition.needs_ticks():
                self.feed(now_ms, events.Ticked())

    def advance_log_start(self, now_ms: int, offset: Offset) -> None:
        """Delete the records below `offset`: at most the high watermark. Raises StorageError."""
        if offset > self.log.log_start_offset:
            self.log.advance_log_start_offset(offset)
            self.feed(now_ms, events.LogStartRose(log_start_offset=offset))
            self._around.log_starts.note(self)
            self._around.readers.note_change(self.topic_partition, FetchWakeup.LOG_START)
        elif offset == self.log.log_start_offset:
            self.log.advance_log_start_offset(offset)
            if self.log.has_dead_segments:  # it was active when the log start reached its end
                self._around.log_starts.note(self)

    def note_log_start_kept(self, now_ms: int, offset: Offset) -> None:
        """Handle a log start that is durable now."""
        if self.is_truncating:
            self._held.append(partial(self.note_log_start_kept, now_ms, offset))
            return
        self.feed(now_ms, events.LogStartKept(log_start_offset=offset))
        self.log.epochs.truncate_from_start(self.partition.state.kept_log_start_offset)
        self._around.fetchers.touch(self)

    def _perform(self, now_ms: int, ordered: Sequence[Effect]) -> None:
        for effect in ordered:
            if self.is_truncating:
                require(False, "a cut is ordered last")
            self._perform_one(now_ms, effect)

    def _perform_one(self, now_ms: int, effect: Effect) -> None:  # noqa: C901, PLR0912 - one branch per effect
        match effect:
            case effects.CompleteBelow(high_watermark=high_watermark):
                self._complete_below(high_watermark)
            case effects.ProposeIsr():
                self._around.proposals.add(self, effect)
            case effects.TruncateTo(offset=offset):
                cut = partial(self.log.truncate_to, offset)
                self._cut(now_ms, cut, lambda end: events.LogTruncated(log_end_offset=end))
            case effects.StartOverAt(offset=offset):
                cut = partial(self.log.truncate_fully_and_start_at, offset)
                self._cut(now_ms, cut, lambda end: events.LogStartedOver(offset=end))
            case effects.DisclaimLog():
                self._disclaim(effect)
            case effects.AdvanceLogStart(offset=offset):
                self.advance_log_start(now_ms, offset)
            case effects.AssignEpoch(leader_epoch=leader_epoch, start_offset=start_offset):
                self.log.epochs.assign(leader_epoch, start_offset)
            case effects.StartFetching(leader_id=leader_id, leader_epoch=leader_epoch):
                self._around.fetchers.follow(self, leader_id, leader_epoch)
            case effects.StopFetching():
                self._around.fetchers.unfollow(self)
            case effects.FailWaiting(error_code=error_code):
                self._tail.clear()
                self.waiting.fail(error_code)
            case effects.AnnounceLeadership(leader_epoch=leader_epoch):
                for listener in self._around.listeners:
                    listener.became_leader(self.topic_partition, leader_epoch)
            case effects.AnnounceResignation(leader_epoch=leader_epoch):
                for listener in self._around.listeners:
                    listener.resigned(self.topic_partition, leader_epoch)
            case effects.AnswerFetch():
                require(False, "a fetch is answered by judge_follower_fetch")
            case _:
                assert_never(effect)

    def _disclaim(self, effect: effects.DisclaimLog) -> None:
        _logger.error(
            "%s: the log of leader %d diverges from offset %d on, but this replica's high "
            "watermark is %d: no truncation until the controller removes this broker from ISR "
            "and ELR",
            *(self.topic_partition, effect.leader_id, effect.offset, effect.high_watermark),
        )
        self._around.report(self.topic_partition)

    # --- Truncation ---

    def _cut(self, now_ms: int, cut: Callable[[], None], event: Callable[[Offset], Event]) -> None:
        """Truncate the log in the disk queue; then feed the event, and the waiting calls."""
        self.is_truncating = True
        around, at = self._around, self.topic_partition
        was_end = self.log.log_end_offset

        def work() -> ProducerStates | None:
            cut()
            around.checkpoints.note_truncated(at, self.log)
            if self.log.log_end_offset == was_end:
                return None  # only an epoch was removed: the producers are unchanged
            ahead_ms = around.clock_ahead_ms()
            kind = type(self.producers)
            return loaded_log.load_producers(self.log, kind, clock_ahead_ms=ahead_ms)

        def done(outcome: ProducerStates | StorageError | None) -> None:
            self.is_truncating = False
            if isinstance(outcome, StorageError):
                around.failed(self, outcome)  # the held calls are void
                return
            if outcome is not None:
                self.producers = outcome
                self.producers.transactions.committed_to(self.partition.state.high_watermark)
            self.feed(now_ms, event(self.log.log_end_offset))
            self._maybe_flush()
            self._resume()

        around.disk.submit(at, work, done)

    # --- Replacement of the log ---

    def begin_exchange(self) -> None:
        """Give the log to a thread; calls wait for `end_exchange`."""
        require(not self.is_truncating, "no thread has the log")
        self.is_truncating = self.is_swapping_log = True

    def end_exchange(self, log: Log | None) -> None:
        """Continue with a durable log of the same records; None: with the current log."""
        self.is_truncating = self.is_swapping_log = False
        if log is not None:
            log.epochs.extend(self.log.epochs.entries)  # including an epoch without records
            log.settings = self.log.settings
            self.log, self.partition.state.epochs = log, log.epochs
            self._flusher.exchange(log)
        self._flushed(self.log.flushed_offset)  # a flush may have ended meanwhile
        self._resume()

    def _resume(self) -> None:
        while self._held and not self.is_truncating:
            self._held.popleft()()
        self._around.readers.note_change(self.topic_partition, FetchWakeup.CHANGED)
        self._around.fetchers.resume()

    # --- Flushes ---

    def _maybe_flush(self) -> None:
        state = self.partition.state
        if not self.is_truncating and state.is_assigned:
            unflushed_max = 1 if state.acks_after_flush else self.log.settings.flush_messages
            self._flusher.maybe_flush(unflushed_max)

    def _flushed(self, offset: Offset) -> None:
        self.feed(self._around.now_ms(), events.LogFlushed(flushed_offset=offset))
        self.waiting.complete_flushed(self.partition.state.flushed_offset)
        self._maybe_flush()
        self._around.fetchers.note_flush_ended(self)

    def _not_flushed(self) -> None:
        self.maybe_fail()
        self._around.fetchers.note_flush_ended(self)

    def _complete_below(self, high_watermark: Offset) -> None:
        self.producers.transactions.committed_to(high_watermark)
        self.waiting.complete_below(high_watermark)
        self._around.readers.note_change(self.topic_partition, _COMMITTED)

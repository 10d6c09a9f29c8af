"""One replica's core, log and waiting producers: feeds facts in, performs effects in order.

No decisions, no tasks and no lock: everything here is synchronous, on the event loop's thread.
"""

from collections.abc import Sequence
from typing import Final, Protocol, assert_never

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.data_path import ProduceDone, ProduceResult, ReadEnd
from quorumlog.broker.partitions.core.deletions import (
    DeletionQueue,
    DeletionResult,
    WaitingDeletion,
)
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.events import Event
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.purgatory import Deadlines, ProduceQueue, WaitingProduce
from quorumlog.broker.partitions.core.tail import Tail, TailRead
from quorumlog.invariants import InvariantViolation, require
from quorumlog.storage.core.appending import AppendInfo
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import BatchHeader, iterate_headers, restamp

Buffer = bytes | bytearray | memoryview


class PendingProduce(WaitingProduce):
    """An acks=all produce whose records are appended; `result` if they are committed in time."""

    __slots__ = ("done", "result")

    def __init__(
        self, deadline_ms: int, required_offset: int, result: ProduceResult, done: ProduceDone
    ) -> None:
        super().__init__(deadline_ms, required_offset)
        self.result = result
        self.done = done


class Outbox(Protocol):
    """Where everything goes that leaves a partition."""

    def appended(self, driver: "PartitionDriver") -> None:
        """Show what we appended, as the leader, to the followers that wait for it."""

    def truncated(self, driver: "PartitionDriver") -> None:
        """Take back what was said of records that are gone, before others take their place."""

    def committed(self, driver: "PartitionDriver") -> None:
        """Show the new high watermark to those who wait for it."""

    def log_start_rose(self, driver: "PartitionDriver") -> None:
        """Let the new log start outlive the process, and say so by `note_log_start_kept`."""

    def start_fetching(
        self, driver: "PartitionDriver", leader_id: BrokerId, leader_epoch: Epoch
    ) -> None:
        """Replicate from this leader, and from nobody else."""

    def stop_fetching(self, driver: "PartitionDriver") -> None:
        """Replicate from nobody."""

    def propose_isr(self, driver: "PartitionDriver", proposal: effects.ProposeIsr) -> None:
        """Send it; feed IsrAnswered back, whatever becomes of it."""

    def became_leader(self, driver: "PartitionDriver", leader_epoch: Epoch) -> None:
        """Tell the listeners."""

    def resigned(self, driver: "PartitionDriver", leader_epoch: Epoch) -> None:
        """Tell the listeners."""


class PartitionDriver:
    """A replica on this broker."""

    __slots__ = (
        "_outbox",
        "_tail",
        "deletions",
        "log",
        "partition",
        "producers",
        "topic_id",
        "topic_partition",
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
        deadlines: Deadlines[PendingProduce],
        deletion_deadlines: Deadlines[WaitingDeletion],
        outbox: Outbox,
    ) -> None:
        self.topic_partition: Final = topic_partition
        self.topic_id: Final = topic_id
        self.partition: Final = partition
        self.log: Final = log
        self.producers: Final = producers
        self.waiting: Final = ProduceQueue(deadlines)
        self.deletions: Final = DeletionQueue(deletion_deadlines)
        self._outbox: Final = outbox
        self._tail: Final = Tail()

    def feed(self, now_ms: int, event: Event) -> None:
        """Let the core take in a fact, and do what it says. `now_ms` is monotonic."""
        self._perform(now_ms, self.partition.step(now_ms, event))
        if self.deletions:
            self._complete_deletions()

    def judge_follower_fetch(self, now_ms: int, event: events.FollowerFetched) -> AnswerFetch:
        """Feed a follower's fetch; return what to answer it, after all that it completed."""
        *ordered, answer = self.partition.step(now_ms, event)
        self._perform(now_ms, ordered)
        if self.deletions:
            self._complete_deletions()
        if not isinstance(answer, AnswerFetch):
            raise InvariantViolation("a fetch is answered last")
        return answer

    def append_as_leader(
        self, records: Buffer, header: BatchHeader, *, now_ms: int, wall_ms: int
    ) -> AppendInfo:
        """Append one checked batch and count it.

        Raises StorageError, RecordsTooLarge: nothing changed.
        """
        info = self.log.append_as_leader(
            records, leader_epoch=self.partition.state.leader_epoch, wall_ms=wall_ms
        )
        self.producers.record(header, info.first_offset, wall_ms)
        if self.partition.state.has_followers:
            self._note_recent(records, info)
        self._outbox.appended(self)
        self._perform(now_ms, self.partition.appended(now_ms, Offset(info.last_offset + 1)))
        return info

    def _note_recent(self, records: Buffer, info: AppendInfo) -> None:
        stamped = bytearray(records)
        epoch = self.partition.state.leader_epoch
        restamp(stamped, 0, base_offset=info.first_offset, leader_epoch=epoch)
        self._tail.forget_below(self.partition.state.high_watermark)
        self._tail.append(info.first_offset, info.last_offset + 1, stamped)

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
        """Append what the leader answered, and take over how far it has committed.

        Raises CorruptBatch, UnexpectedOffset, RecordsTooLarge, StorageError: nothing changed.
        """
        if records:
            info = self.log.append_as_follower(records, leader_epoch=leader_epoch)
            for _, header in iterate_headers(memoryview(records)[: info.size]):
                self.producers.record(header, header.base_offset, wall_ms)
        answered = events.LeaderAnswered(
            leader_epoch=leader_epoch,
            log_end_offset=self.log.log_end_offset,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
        )
        self.feed(now_ms, answered)

    def read(self, offset: Offset, *, max_bytes: int, end: ReadEnd, at_least_one: bool) -> TailRead:
        """Read whole batches from `offset` on. Raises OffsetOutOfRange, StorageError."""
        end_offset = self.end(end)
        recent = self._tail.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )
        if recent is not None:
            return recent
        records, next_offset = self.log.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, at_least_one=at_least_one
        )
        return TailRead([records] if records else [], len(records), next_offset)

    def end(self, end: ReadEnd) -> Offset:
        """Return the offset (exclusive) where a read to this end stops."""
        state = self.partition.state
        return state.log_end_offset if end is ReadEnd.LOG_END else state.high_watermark

    def note_tick(self, now_ms: int) -> None:
        """Let a leader look at the clock."""
        if self.partition.state.is_leader:
            self._tail.forget_below(self.partition.state.high_watermark)
            self.feed(now_ms, events.Ticked())

    def advance_log_start(self, now_ms: int, offset: Offset) -> None:
        """Let go of what lies below `offset`: at most the high watermark. Raises StorageError."""
        if offset > self.log.log_start_offset:
            self.log.advance_log_start_offset(offset)
            self.feed(now_ms, events.LogStartRose(log_start_offset=offset))
            self._outbox.log_start_rose(self)

    def note_log_start_kept(self, now_ms: int, offset: Offset) -> None:
        """Take note that the log's start will outlive the process."""
        self.feed(now_ms, events.LogStartKept(log_start_offset=offset))
        self.log.epochs.truncate_from_start(self.partition.state.kept_log_start_offset)

    def rebuild_producers(self) -> None:
        """Learn the producers anew from the log; the last batch of one may be below its start."""
        self.producers.rebuild(self.log.headers(self.log.segment_base_offsets[0]))

    def _perform(self, now_ms: int, ordered: Sequence[Effect]) -> None:
        for effect in ordered:
            self._perform_one(now_ms, effect)

    def _perform_one(self, now_ms: int, effect: Effect) -> None:  # noqa: C901, PLR0912 -- one branch per effect
        match effect:
            case effects.CompleteBelow(high_watermark=high_watermark):
                self._complete_below(high_watermark)
            case effects.ProposeIsr():
                self._outbox.propose_isr(self, effect)
            case effects.TruncateTo(offset=offset):
                was_end = self.log.log_end_offset
                self.log.truncate_to(offset)
                log_end_offset = self.log.log_end_offset
                if log_end_offset < was_end:  # else only an epoch went: nothing to read again
                    self._outbox.truncated(self)
                    self.rebuild_producers()
                self.feed(now_ms, events.LogTruncated(log_end_offset=log_end_offset))
            case effects.StartOverAt(offset=offset):
                self.log.truncate_fully_and_start_at(offset)
                self._outbox.truncated(self)
                self.rebuild_producers()
                self.feed(now_ms, events.LogStartedOver(offset=offset))
            case effects.AdvanceLogStart(offset=offset):
                self.advance_log_start(now_ms, offset)
            case effects.AssignEpoch(leader_epoch=leader_epoch, start_offset=start_offset):
                self.log.epochs.assign(leader_epoch, start_offset)
            case effects.StartFetching(leader_id=leader_id, leader_epoch=leader_epoch):
                self._outbox.start_fetching(self, leader_id, leader_epoch)
            case effects.StopFetching():
                self._outbox.stop_fetching(self)
            case effects.FailWaiting(error_code=error_code):
                self._tail.clear()
                self.fail_waiting(error_code)
            case effects.AnnounceLeadership(leader_epoch=leader_epoch):
                self._outbox.became_leader(self, leader_epoch)
            case effects.AnnounceResignation(leader_epoch=leader_epoch):
                self._outbox.resigned(self, leader_epoch)
            case effects.AnswerFetch():
                require(False, "a fetch is answered by judge_follower_fetch")
            case _:
                assert_never(effect)

    def fail_waiting(self, error_code: ErrorCode) -> None:
        """Answer everybody who waits here: whether their records will be committed is unknown."""
        for wait in self.waiting.fail():
            wait.done(ProduceResult(error_code))
        for deletion in self.deletions.fail():
            deletion.done(DeletionResult(error_code))

    def _complete_deletions(self) -> None:
        low_watermark = self.partition.serving.low_watermark()
        for deletion in self.deletions.complete(low_watermark):
            deletion.done(DeletionResult(ErrorCode.NONE, low_watermark))

    def _complete_below(self, high_watermark: Offset) -> None:
        completed = self.waiting.complete_below(high_watermark)
        if completed:
            error_code = self.partition.serving.commit_outcome()
            for wait in completed:
                is_fine = error_code is ErrorCode.NONE
                wait.done(wait.result if is_fine else ProduceResult(error_code))
        self._outbox.committed(self)

"""Replicas with one broken rule each: commits, the ISR, truncation, flushes, reads, producers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.followership import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr import FollowerProgress
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.leadership import Leadership
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.reads import Reads
from quorumlog.broker.partitions.core.role_changes import RoleChanges
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.log_flusher import LogFlusher
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.requests import encoded_again
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.storage.core.append_checks import Append
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    NO_EPOCH,
    BrokerId,
    Epoch,
    Offset,
    TopicId,
    TopicPartition,
)
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader, decode_batches, iterate_headers
from quorumlog.wire.codec.transaction_markers import TransactionMarker

# ruff: noqa: ARG002 - a mutant has the signature of the replaced method

REPLICAS: Final = Mutants("replication")
FLUSHES: Final = Mutants("replication")
"""They count unflushed records."""
FOLLOWER_READS: Final = Mutants("replication")
"""Whole nodes alone can run them: the worlds have no consumers of followers."""


PRODUCERS: Final = Mutants("replication")
"""Whole nodes alone can run them: the worlds have no idempotent producers and no bursts."""
COPIES: Final = Mutants("replication")
"""Whole nodes alone can run them: the records of the worlds are not batches."""
_ALTERED_EVERY: Final = 16  # offsets
_WAITING_MAX: Final = 3  # batches above the high watermark, with the one just appended


# --- replicas ---


@REPLICAS.breaks("a leader commits records that only its own log has")
class CommitsAlone(HighWatermarkRule):
    """Commits records that only the leader holds."""

    def replicas_that_count(  # noqa: D102 - the broken rule
        self, role: Leader, now_ms: int
    ) -> Iterable[FollowerProgress]:
        return ()


@REPLICAS.breaks("a leader does not count the members of its proposed ISR (KIP-497)")
class _CountsOnlyTheGrantedIsr(HighWatermarkRule):
    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        return [progress for member, progress in role.followers.items() if member in role.isr]


@REPLICAS.breaks("a follower joins the ISR although it lacks committed records")
class _LetsLaggardsJoin(IsrRules):
    def may_join(self, role: Leader, replica: BrokerId) -> bool:
        return True


class _CountsEchoesOfOlderProcesses(Leadership):
    def is_replaced(self, progress: FollowerProgress, event: events.FollowerFetched) -> bool:
        return False


@REPLICAS.breaks(
    "a leader takes a restarted follower for its former process (KIP-903)",
    also=_CountsEchoesOfOlderProcesses,
)
class _IgnoresBrokerEpochs(IsrRules):
    def broker_epoch(self, role: Leader, member: BrokerId) -> int:
        state = self._state
        return -1 if member == state.broker_id else state.brokers[member].broker_epoch

    def may_join(self, role: Leader, replica: BrokerId) -> bool:
        floor = max(self._state.high_watermark, role.epoch_start)
        return role.followers[replica].log_end_offset >= floor


@REPLICAS.breaks("a leader counts a follower by its fetch offset, also if the logs diverge")
class _CountsDivergingFollowers(Leadership):
    def follower_fetched(
        self, role: Leader, now_ms: int, event: events.FollowerFetched
    ) -> Sequence[effects.Effect]:
        if event.broker_id in role.followers:
            role.followers[event.broker_id].log_end_offset = event.fetch_offset
        return super().follower_fetched(role, now_ms, event)


@REPLICAS.breaks("a leader serves a fetch without comparing the logs (KIP-595)")
class _IgnoresDivergence(Reads):
    def judge_read(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch, **known: bool
    ) -> effects.AnswerFetch:
        return super().judge_read(leader_epoch, fetch_offset, NO_EPOCH, **known)


class _TruncatesBeforeItFollows(RoleChanges):
    def begin_epoch(self, *begun: Any) -> Sequence[effects.Effect]:
        ordered = super().begin_epoch(*begun)
        if self._state.is_leader:
            return ordered
        return [*ordered, effects.TruncateTo(offset=self._state.high_watermark)]


@REPLICAS.breaks(
    "a follower truncates its log to its own high watermark, as before KIP-101",
    also=_TruncatesBeforeItFollows,
)
class _TruncatesToItsHighWatermark(Followership):
    def leader_diverged(self, event: events.LeaderDiverged) -> Sequence[effects.Effect]:
        if not self.still_fits(event):
            return ()
        return [effects.TruncateTo(offset=self._state.high_watermark)]


@REPLICAS.breaks("a follower appends a fetch response from before its truncation (KAFKA-13207)")
class _TakesLateAnswers(Followership):
    def accepts_answer(self, leader_epoch: Epoch, fetch_offset: Offset, *_: Epoch) -> bool:
        state = self._state
        return leader_epoch == state.leader_epoch and fetch_offset == state.log_end_offset


@REPLICAS.breaks("a leader commits without the members whose removal from the ISR is pending")
class _ShrinksBeforeItIsGranted(IsrRules):
    def propose(self, role: Leader, new_isr: frozenset[BrokerId]) -> Sequence[effects.Effect]:
        ordered = super().propose(role, new_isr)
        role.maximal_isr = new_isr
        return ordered


@REPLICAS.breaks("a leader takes an unanswered ISR proposal for a refused proposal")
class _TakesAnyRefusalForFinal(Leadership):
    def isr_answered(
        self, role: Leader, now_ms: int, event: events.IsrAnswered
    ) -> Sequence[effects.Effect]:
        if event.error_code is ErrorCode.REQUEST_TIMED_OUT:
            event = replace(event, error_code=ErrorCode.OPERATION_NOT_ATTEMPTED)
        return super().isr_answered(role, now_ms, event)


@REPLICAS.breaks("the response to an older ISR proposal counts for the pending proposal (KIP-497)")
class _TakesAnswersToOlderProposals(IsrRules):
    def answered(self, role: Leader, event: events.IsrAnswered) -> bool:
        if role.pending is not None:
            event = replace(event, asked_epoch=role.pending.partition_epoch)
        return super().answered(role, event)


@REPLICAS.breaks("a replica leaves the timer sweeps for ever: its waits never time out")
class _NeverLooksAtTheClock(Leadership):
    def is_settled(self, role: Leader) -> bool:
        return True


@REPLICAS.breaks("a new topic opens the log of a deleted topic with the same name (KAFKA-14616)")
class _TakesUpLogsOfDeletedTopics(LogDirectory):
    def open(
        self, topic_partition: TopicPartition, topic_id: TopicId, *known: Any, **options: Any
    ) -> tuple[Log, Offset]:
        found_id = self.topic_id_of(str(topic_partition)) if self.holds(topic_partition) else None
        known_id = topic_id if found_id is None else found_id
        return super().open(topic_partition, known_id, *known, **options)


# --- flushes: `log.flush.acks` ---


@FLUSHES.breaks("a leader counts its own records before they are flushed")
class _CommitsBeforeItsFlush(HighWatermarkRule):
    def own_offset(self) -> Offset:
        return self._state.log_end_offset


@FLUSHES.breaks("a follower's fetch offset includes unflushed records")
class _FollowersTellUnflushedOffsets(Followership):
    def may_fetch(self) -> bool:
        return True


@FLUSHES.breaks("a flush of a partition's log completes before the fsync")
class _FlushesDoNotWait(Log):
    def flush(self) -> Offset:
        self._flushed_offset = self._log_end_offset
        return self.log_end_offset


@FLUSHES.breaks("a flush's result counts although the log was truncated or flushed since its start")
class _CountsFlushesFromBeforeCuts(LogFlusher):
    def _ended(self, outcome: Offset | StorageError) -> None:
        if isinstance(outcome, StorageError):
            super()._ended(outcome)
        else:
            self._is_under_way = False
            self._flushed(outcome)


# --- reads from followers (KIP-392) ---


@FOLLOWER_READS.breaks("a follower serves uncommitted records to consumers (KIP-392)")
class _FollowersServeTheirLogEnd(Reads):
    def read_end(self, end: ReadEnd) -> Offset:
        state = self._state
        return super().read_end(end) if state.is_leader else state.log_end_offset


@FOLLOWER_READS.breaks(
    "a follower takes its log end offset for its high watermark, and serves up to it"
)
class _FollowersCommitWhatTheyHold(Followership):
    def leader_answered(self, event: events.LeaderAnswered) -> Sequence[Effect]:
        return super().leader_answered(event._replace(high_watermark=event.log_end_offset))


@FOLLOWER_READS.breaks("a follower never receives the high watermark, and serves no records")
class _FollowersNeverLearnOfCommits(Followership):
    def leader_answered(self, event: events.LeaderAnswered) -> Sequence[Effect]:
        return super().leader_answered(event._replace(high_watermark=Offset(0)))


# --- idempotent producers (KIP-98) and acknowledgements under load ---


@PRODUCERS.breaks("a follower does not record the producers of the batches that it copies (KIP-98)")
class _FollowersForgetProducers(ProducerStates):
    def record(
        self,
        batch: BatchHeader,
        base_offset: int,
        wall_ms: int,
        marker: TransactionMarker | None = None,
    ) -> AbortedTransaction | None:
        # A client's batch has no offset yet when its leader records it.
        is_copied = 0 < batch.base_offset == base_offset
        if is_copied and batch.base_sequence >= 0 and not batch.is_transactional:
            return None
        return super().record(batch, base_offset, wall_ms, marker)


@PRODUCERS.breaks("a replica forgets the last producer of its log at a start (KIP-98)")
class _ForgetsOneProducer(ProducerStates):
    def rebuild(self, batches: Iterable[BatchHeader], known: Iterable[SnapshotEntry] = ()) -> None:
        super().rebuild(batches, known)
        if self._producers:
            self._producers.popitem()


@PRODUCERS.breaks("a leader acknowledges before it replicates while several batches wait")
class _AcksEarlyUnderLoad(HighWatermarkRule):
    def maybe_advance(self, role: Leader, now_ms: int) -> Sequence[Effect]:
        ordered = super().maybe_advance(role, now_ms)
        end, committed = self._state.log_end_offset, self._state.high_watermark
        ends: list[int] = self.__dict__.setdefault("ends", [])
        ends[:] = [*(one for one in ends if committed < one < end), end]
        if len(ends) <= _WAITING_MAX:
            return ordered
        return [*ordered, effects.CompleteBelow(high_watermark=end)]


# --- copies ---


@COPIES.breaks("a follower writes other values than its leader sent")
class _AltersSomeCopies(Log):
    """No client sees it before the follower leads, or serves consumers."""

    def append_as_follower(
        self,
        records: Buffer,
        headers: Iterable[tuple[int, BatchHeader]] | None = None,
        *,
        leader_epoch: int | None = None,
    ) -> Append:
        return super().append_as_follower(_altered(bytes(records)), leader_epoch=leader_epoch)


def _altered(records: bytes) -> bytes:
    """Overwrite the values of some uncompressed batches: the size, and all else, stays."""
    altered = bytearray(records)
    batches = zip(iterate_headers(records), decode_batches(records), strict=True)
    for (position, header), (_, batch) in batches:
        if header.is_control or header.compression or header.base_offset % _ALTERED_EVERY:
            continue
        zeros = [one._replace(value=one.value and bytes(len(one.value))) for one in batch]
        altered[position : position + header.size_in_bytes] = encoded_again(header, zeros)
    return bytes(altered)

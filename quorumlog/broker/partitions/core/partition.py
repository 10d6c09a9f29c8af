"""The state machine of one replica: its role, its ISR and its high watermark.

It refuses fetches of another leader epoch, of brokers that are not assigned replicas, and of
processes that have been replaced. It holds no log bytes, only the log's ends and epoch history.
A `Partition` owns one `PartitionState` and the rules over it, one object for each subject.
Sources: KIP-101, 279, 320, 595 (leader epochs), KIP-497, 903, 966 (ISR), KAFKA-13790, 15221.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.directory_moves import DirectoryMoveRules
from quorumlog.broker.partitions.core.divergence import EpochHistory
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.followership import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.leadership import Leadership
from quorumlog.broker.partitions.core.partition_invariants import PartitionInvariants
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS, PartitionState
from quorumlog.broker.partitions.core.pending_updates import PendingUpdates
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.reads import Reads
from quorumlog.broker.partitions.core.replication_throttle import ReplicationThrottle
from quorumlog.broker.partitions.core.role_changes import RoleChanges
from quorumlog.broker.partitions.core.roles import Follower, Leader, Unassigned
from quorumlog.invariants import InvariantViolation
from quorumlog.storage.core.cleaning import CleanableRange
from quorumlog.storage.core.retention import Retention
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRules:
    """The rules of a broker's replicas, each a class that a test or a mutant node may replace."""

    serving: type[Reads] = Reads
    high_watermark: type[HighWatermarkRule] = HighWatermarkRule
    isr: type[IsrRules] = IsrRules
    leadership: type[Leadership] = Leadership
    followership: type[Followership] = Followership
    role_changes: type[RoleChanges] = RoleChanges
    invariants: type[PartitionInvariants] = PartitionInvariants
    producers: type[ProducerStates] = ProducerStates
    retention: type[Retention] = Retention
    cleanable: type[CleanableRange] = CleanableRange
    throttle: type[ReplicationThrottle] = ReplicationThrottle
    pending_updates: type[PendingUpdates] = PendingUpdates
    directory_moves: type[DirectoryMoveRules] = DirectoryMoveRules


KAFKA_RULES: Final = PartitionRules()
_TRUNCATIONS: Final = (events.LogTruncated, events.LogStartedOver)


class Partition:
    """One replica of one partition. `now_ms` is always the monotonic clock."""

    __slots__ = (
        "_followership",
        "_high_watermark",
        "_invariants",
        "_leadership",
        "_role_changes",
        "serving",
        "state",
    )

    def __init__(
        self,
        broker_id: BrokerId,
        epochs: EpochHistory,
        *,
        replica_lag_time_max_ms: int,
        log_start_offset: Offset = Offset(0),
        log_end_offset: Offset = Offset(0),
        high_watermark: Offset = Offset(0),
        rules: PartitionRules = KAFKA_RULES,
        acks_after_flush: bool = False,
    ) -> None:
        state = self.state = PartitionState(
            broker_id,
            epochs,
            replica_lag_time_max_ms=replica_lag_time_max_ms,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            high_watermark=high_watermark,
            acks_after_flush=acks_after_flush,
        )
        isr = rules.isr(state)
        self.serving: Final = rules.serving(state)
        self._high_watermark: Final = rules.high_watermark(state)
        self._leadership: Final = rules.leadership(state, self.serving, isr, self._high_watermark)
        self._followership: Final = rules.followership(state, self.serving)
        self._role_changes: Final = rules.role_changes(state, isr, self._high_watermark)
        self._invariants: Final = rules.invariants(state)

    def step(self, now_ms: int, event: events.Event) -> Sequence[Effect]:
        """Handle one event; return the effects, in order. Raises InvariantViolation: our bug.

        For FollowerFetched the last effect is its AnswerFetch.
        """
        before = self._invariants.marks()
        role = self.state.role
        if isinstance(event, events.FollowerFetched) and isinstance(role, Leader):
            ordered = self._leadership.follower_fetched(role, now_ms, event)
            if self._invariants.marks() != before:  # the usual fetch changes none
                self._invariants.check(before)
            return ordered
        if isinstance(event, events.LeaderAnswered) and isinstance(role, Follower):
            ordered = self._followership.leader_answered(event)
            self._invariants.check(before)
            return ordered
        ordered = self._handle(now_ms, event)
        truncates = isinstance(event, _TRUNCATIONS)
        cuts = truncates and isinstance(event, events.LogTruncated)
        self._invariants.check(before, truncates=truncates, cuts=cuts)
        if isinstance(event, events.Ticked):
            self._invariants.check_ticked()
        return ordered

    def appended(self, now_ms: int, log_end_offset: Offset) -> Sequence[Effect]:
        """Do as `step` does for RecordsAppended, without the event: the hot path."""
        before = self._invariants.marks()
        state = self.state
        role = state.role
        former_end, state.log_end_offset = state.log_end_offset, log_end_offset
        ordered = NO_EFFECTS
        if isinstance(role, Leader):
            role.note_append(now_ms, former_end)
            ordered = self._high_watermark.maybe_advance(role, now_ms)
        after = self._invariants.marks()
        # A longer log alone violates none.
        if log_end_offset < former_end or after[:2] != before[:2] or after[3:] != before[3:]:
            self._invariants.check(before)
        return ordered

    def accepts_answer(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> bool:
        """Whether a response to this fetch still applies to this replica (KAFKA-13207)."""
        return isinstance(self.state.role, Follower) and self._followership.accepts_answer(
            leader_epoch, fetch_offset, last_fetched_epoch
        )

    def needs_ticks(self) -> bool:
        """Whether `Ticked` may change the state. With many partitions, very few need it."""
        role = self.state.role
        return isinstance(role, Leader) and not self._leadership.is_settled(role)

    def may_fetch(self) -> bool:
        """Whether a follower may fetch: its fetch offset acknowledges all records below it."""
        return self._followership.may_fetch()

    def _handle(self, now_ms: int, event: events.Event) -> Sequence[Effect]:
        state = self.state
        match event:
            case (
                events.FollowerFetched()
                | events.LeaderAnswered()
                | events.Ticked()
                | events.IsrAnswered()
                | events.LeaderDiverged()
                | events.FetchOutOfRange()
                | events.BatchBeganEarlier()
            ):
                pass
            case events.RecordsAppended() | events.LogFlushed():
                self._log_reached(now_ms, event)
            case events.BrokersPublished(brokers=brokers):
                state.brokers = brokers
            case events.PartitionPublished():
                return self._role_changes.published(now_ms, event)
            case events.ReplicaRemoved(error_code=error_code):
                return self._role_changes.removed(error_code)
            case (
                events.LogTruncated()
                | events.LogStartedOver()
                | events.LogStartRose()
                | events.LogStartKept()
            ):
                state.log_changed(event)
                return NO_EFFECTS
            case _:
                assert_never(event)
        match state.role:
            case Leader() as role:
                return self._leadership.handle(role, now_ms, event)
            case Follower():
                return self._followership.handle(event)
            case Unassigned():
                return self._handle_unassigned(event)
            case role:
                assert_never(role)

    def _log_reached(self, now_ms: int, event: events.RecordsAppended | events.LogFlushed) -> None:
        role = self.state.role
        if isinstance(role, Leader) and isinstance(event, events.RecordsAppended):
            role.note_append(now_ms, self.state.log_end_offset)
        self.state.log_reached(event)

    def _handle_unassigned(self, event: events.RoleEvent) -> Sequence[Effect]:
        """Refuse a fetch; ignore responses to requests of an earlier role."""
        match event:
            case events.FollowerFetched():
                return [self.serving.judge_follower(event)]
            case events.LeaderAnswered():
                raise InvariantViolation("only a follower appends fetched records")
            case _:
                return NO_EFFECTS

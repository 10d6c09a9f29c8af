"""The rules of a leader: it tracks the log ends of its followers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.events import RoleEvent
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr import FollowerProgress
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS, PartitionState
from quorumlog.broker.partitions.core.reads import RECORDS, Reads
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId

_RECORDS_ALONE: Final = (RECORDS,)


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader role. Sources: KIP-497, KIP-903, KAFKA-13091, 13141, 13837, 15221."""

    _state: PartitionState
    _serving: Reads
    _isr: IsrRules
    _high_watermark: HighWatermarkRule

    def handle(self, role: Leader, now_ms: int, event: RoleEvent) -> Sequence[Effect]:
        """Handle one event as the leader."""
        match event:
            case events.FollowerFetched():
                return self.follower_fetched(role, now_ms, event)
            case events.RecordsAppended() | events.LogFlushed() | events.BrokersPublished():
                return self._high_watermark.maybe_advance(role, now_ms)
            case events.Ticked():
                # A replica that was about to join may have stopped fetching: it no longer counts.
                proposed = self._isr.maybe_shrink(role, now_ms)
                return [*proposed, *self._high_watermark.maybe_advance(role, now_ms)]
            case events.IsrAnswered():
                return self.isr_answered(role, now_ms, event)
            case events.LeaderAnswered():
                raise InvariantViolation("only a follower appends fetched records")
            case events.LeaderDiverged() | events.FetchOutOfRange() | events.BatchBeganEarlier():
                return NO_EFFECTS  # the fetch was sent as a follower
            case _:
                assert_never(event)

    def is_settled(self, role: Leader) -> bool:
        """Whether `Ticked` would change no state at any time; the caller then skips it.

        All of the log is committed, all of the ISR holds it, and no proposal is pending.
        """
        log_end_offset = self._state.log_end_offset
        if role.pending is not None or self._state.high_watermark != log_end_offset:
            return False
        for replica, progress in role.followers.items():
            if progress.log_end_offset != log_end_offset and replica in role.isr:
                return False
        return True

    def follower_fetched(
        self, role: Leader, now_ms: int, event: events.FollowerFetched
    ) -> Sequence[Effect]:
        """Check a follower's fetch, and record its log end if the fetch is valid."""
        answer = self._serving.judge_follower(event)
        progress = role.followers.get(event.broker_id)
        if progress is None:
            # Not a replica here, or its metadata image is newer than ours (KAFKA-13837).
            return [AnswerFetch(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)]
        if self.is_replaced(progress, event):
            return [AnswerFetch(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        if answer is not RECORDS:
            return [answer]  # its log diverges: its offset does not count (13141)
        progress.fetched(now_ms, event.fetch_offset, event.broker_epoch, self._state.log_end_offset)
        progress.log_start_offset = event.log_start_offset
        # First complete the produces: the response carries the high watermark.
        if event.broker_id in role.maximal_isr:
            ordered = self._high_watermark.maybe_advance(role, now_ms)
            return [*ordered, answer] if ordered else _RECORDS_ALONE
        changed = self._isr.maybe_expand(role, event.broker_id)
        return [*changed, *self._high_watermark.maybe_advance(role, now_ms), answer]

    def is_replaced(self, progress: FollowerProgress, event: events.FollowerFetched) -> bool:
        """Whether the fetch is of a process that a later one of the same broker has replaced."""
        broker_epoch = event.broker_epoch
        if broker_epoch == -1:
            return False
        broker = self._state.brokers.get(event.broker_id)
        is_registered = broker is None or broker_epoch >= broker.broker_epoch
        return not is_registered or broker_epoch < progress.broker_epoch

    def isr_answered(
        self, role: Leader, now_ms: int, event: events.IsrAnswered
    ) -> Sequence[Effect]:
        """Handle the AlterPartition response: a shrink may complete produces (KAFKA-13091)."""
        if self._isr.answered(role, event):
            return self._high_watermark.maybe_advance(role, now_ms)
        return NO_EFFECTS


def new_followers(
    replicas: Iterable[BrokerId], isr: frozenset[BrokerId], *, leader_id: BrokerId, now_ms: int
) -> dict[BrokerId, FollowerProgress]:
    """Return a new leader's followers, without fetch state: some may have to truncate.

    A member of the ISR gets one full lag time to find its new leader.
    """
    return {
        replica: FollowerProgress(caught_up_ms=now_ms if replica in isr else None)
        for replica in replicas
        if replica != leader_id
    }

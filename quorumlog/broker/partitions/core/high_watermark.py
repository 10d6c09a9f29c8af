"""The rule that moves a leader's high watermark: which records are committed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quorumlog.broker.partitions.core import effects
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.isr import FollowerProgress, is_eligible
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS, PartitionState
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.wire.codec.identifiers import BrokerId, Offset


@dataclass(frozen=True, slots=True)
class HighWatermarkRule:
    """A record is committed once all replicas that count hold it; with `acks_after_flush`, on disk.

    Sources: KIP-497 (maximal ISR), KIP-966 (strict min ISR), KAFKA-13091.
    """

    _state: PartitionState

    def maybe_advance(self, role: Leader, now_ms: int) -> Sequence[Effect]:
        """Advance the high watermark to the least log end of the replicas that count."""
        state = self._state
        if len(role.isr) < state.min_insync_replicas:
            return NO_EFFECTS  # strict min ISR (KIP-966)
        committed, high_watermark = self.own_offset(), state.high_watermark
        if committed <= high_watermark:
            return NO_EFFECTS
        for progress in self.replicas_that_count(role, now_ms) if role.followers else ():
            if progress.log_end_offset < committed:
                committed = progress.log_end_offset
                if committed <= high_watermark:
                    return NO_EFFECTS
        state.high_watermark = committed
        return [effects.CompleteBelow(high_watermark=committed)]

    def own_offset(self) -> Offset:
        """Return the offset (exclusive) up to which the leader's own records count."""
        state = self._state
        return state.flushed_offset if state.acks_after_flush else state.log_end_offset

    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        """Return the followers whose log ends bound the high watermark.

        They are the maximal ISR, because the controller may already have granted any of it
        (KIP-497), and every caught-up replica that is about to join: it would never reach a moving
        high watermark otherwise.
        """
        maximal_isr = role.maximal_isr
        if len(maximal_isr) > len(role.followers):  # all of them, and the leader
            return role.followers.values()
        return [
            progress
            for replica, progress in role.followers.items()
            if replica in maximal_isr or self._is_about_to_join(replica, progress, now_ms)
        ]

    def _is_about_to_join(self, replica: BrokerId, progress: FollowerProgress, now_ms: int) -> bool:
        state = self._state
        return (
            progress.log_end_offset >= 0
            and progress.is_caught_up(now_ms, state.log_end_offset, state.replica_lag_time_max_ms)
            and is_eligible(state.brokers, replica, progress.broker_epoch)
        )

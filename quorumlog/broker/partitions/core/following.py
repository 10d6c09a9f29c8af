"""What a replica does as a follower: append what its leader sent, truncate where they part."""

from collections.abc import Sequence

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.divergence import truncation_offset
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS, PartitionState
from quorumlog.broker.partitions.core.roles import Follower
from quorumlog.invariants import require
from quorumlog.wire.codec.identifiers import Epoch, Offset


class FollowerRules(PartitionState):
    """Sources: KIP-101, KIP-279, KIP-595, KAFKA-10706, 13207, 14704, 18723."""

    def accepts_answer(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> bool:
        """Whether the answer to this fetch still concerns us (KAFKA-13207).

        The epoch of the last record counts too: after a truncation the log may have grown to the
        same length again, and an answer that was late would cut what is committed by now.
        """
        return (
            self._follows_in(leader_epoch)
            and fetch_offset == self.log_end_offset
            and last_fetched_epoch == self.epochs.latest_epoch
        )

    def _follows_in(self, leader_epoch: Epoch) -> bool:
        return isinstance(self.role, Follower) and leader_epoch == self.leader_epoch

    def _still_fits(self, event: events.LeaderDiverged | events.FetchOutOfRange) -> bool:
        return self.accepts_answer(event.leader_epoch, event.fetch_offset, event.last_fetched_epoch)

    def _handle_leader_answered(self, event: events.LeaderAnswered) -> Sequence[Effect]:
        require(self._follows_in(event.leader_epoch), "only a follower appends what it fetched")
        self.log_end_offset = event.log_end_offset
        ordered: list[Effect] = []
        committed = min(event.high_watermark, event.log_end_offset)
        if committed > self.high_watermark:
            self.high_watermark = committed
            ordered.append(effects.CompleteBelow(high_watermark=committed))
        start = min(event.log_start_offset, self.high_watermark)
        if start > self.log_start_offset:
            ordered.append(effects.AdvanceLogStart(offset=start))
        return ordered

    def _handle_leader_diverged(self, event: events.LeaderDiverged) -> Sequence[Effect]:
        """Truncate. What the leader calls committed counts from the next fetch (KAFKA-14704)."""
        if not self._still_fits(event):
            return NO_EFFECTS
        offset = truncation_offset(
            self.epochs,
            epoch=event.epoch,
            end_offset=event.end_offset,
            log_end_offset=self.log_end_offset,
        )
        # Ordered even if no record goes: the history of epochs may have to (KAFKA-10706).
        return [effects.TruncateTo(offset=max(offset, self.log_start_offset))]

    def _handle_fetch_out_of_range(self, event: events.FetchOutOfRange) -> Sequence[Effect]:
        """Start over where the leader's log starts, if that is the reason."""
        if not self._still_fits(event):
            return NO_EFFECTS
        if event.log_start_offset < 0:
            return NO_EFFECTS  # it did not say where: ask again
        holds_nothing = self.log_start_offset == self.log_end_offset
        if event.log_start_offset > self.log_end_offset or holds_nothing:
            return [effects.StartOverAt(offset=event.log_start_offset)]
        return NO_EFFECTS

    def _handle_log_truncated(self, log_end_offset: Offset) -> Sequence[Effect]:
        self.log_end_offset = log_end_offset
        self.high_watermark = min(self.high_watermark, log_end_offset)
        # The start may lie within a batch that is cut.
        self.log_start_offset = min(self.log_start_offset, log_end_offset)
        self.kept_log_start_offset = min(self.kept_log_start_offset, log_end_offset)
        return NO_EFFECTS

    def _handle_log_started_over(self, offset: Offset) -> Sequence[Effect]:
        self.log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.kept_log_start_offset = offset
        return NO_EFFECTS

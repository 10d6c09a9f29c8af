"""The rules of a follower: it appends its leader's records, and truncates where logs diverge."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.divergence import truncation_offset
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.events import RoleEvent
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS, PartitionState
from quorumlog.broker.partitions.core.reads import Reads
from quorumlog.broker.partitions.core.roles import Follower
from quorumlog.invariants import require
from quorumlog.wire.codec.identifiers import Epoch, Offset


@dataclass(frozen=True, slots=True)
class Followership:
    """The follower role. Sources: KIP-101, KIP-279, KIP-595, KAFKA-10706, 13207, 14704, 18723.

    A member of the ISR or the ELR never truncates records below its high watermark. Its leader has
    them too, or one of the two logs is damaged: then the controller decides first.
    docs/decisions/0014-whole-logs.md
    """

    _state: PartitionState
    _serving: Reads

    def handle(self, event: RoleEvent) -> Sequence[Effect]:
        """Handle one event as a follower."""
        match event:
            case events.LeaderAnswered():
                return self.leader_answered(event)
            case events.LeaderDiverged():
                return self.leader_diverged(event)
            case events.FetchOutOfRange():
                return self._fetch_out_of_range(event)
            case events.BatchBeganEarlier():
                return self.batch_began_earlier(event)
            case events.FollowerFetched():
                return [self._serving.judge_follower(event)]
            case (
                events.RecordsAppended()
                | events.LogFlushed()
                | events.BrokersPublished()
                | events.Ticked()
                | events.IsrAnswered()
            ):
                return NO_EFFECTS
            case _:
                assert_never(event)

    def accepts_answer(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> bool:
        """Whether a response to this fetch still applies to this follower (KAFKA-13207).

        The epoch of the last record is compared too: after a truncation the log may have grown to
        the same length again, and a late response would cut records that are committed by now.
        """
        state = self._state
        return (
            leader_epoch == state.leader_epoch
            and not state.is_contradicted
            and fetch_offset == state.log_end_offset
            and last_fetched_epoch == state.epochs.latest_epoch
        )

    def may_fetch(self) -> bool:
        """Whether a fetch may report the log end: with `acks_after_flush` only once flushed."""
        state = self._state
        return not state.acks_after_flush or state.flushed_offset == state.log_end_offset

    def still_fits(
        self, event: events.LeaderDiverged | events.FetchOutOfRange | events.BatchBeganEarlier
    ) -> bool:
        """Whether the event's position is the current position of this follower."""
        return self.accepts_answer(event.leader_epoch, event.fetch_offset, event.last_fetched_epoch)

    def leader_answered(self, event: events.LeaderAnswered) -> Sequence[Effect]:
        """Apply the new log end, and the leader's high watermark and log start."""
        state = self._state
        leader_epoch, log_end_offset, committed, start = event  # the last two: the leader's
        require(leader_epoch == state.leader_epoch, "a follower appends in its own epoch")
        state.log_end_offset = log_end_offset
        ordered: list[Effect] = []
        committed = min(committed, log_end_offset)
        if committed > state.high_watermark:
            state.high_watermark = committed
            ordered.append(effects.CompleteBelow(high_watermark=committed))
        start = min(start, state.high_watermark)
        if start > state.log_start_offset:
            ordered.append(effects.AdvanceLogStart(offset=start))
        return ordered

    def leader_diverged(self, event: events.LeaderDiverged) -> Sequence[Effect]:
        """Truncate. The leader's high watermark applies from the next fetch on (KAFKA-14704)."""
        if not self.still_fits(event):
            return NO_EFFECTS
        return self._truncate(event.epoch, event.end_offset)

    def _truncate(self, epoch: Epoch, end_offset: Offset) -> Sequence[Effect]:
        state = self._state
        offset = truncation_offset(
            state.epochs, epoch=epoch, end_offset=end_offset, log_end_offset=state.log_end_offset
        )
        offset = max(offset, state.log_start_offset)
        if state.is_member and offset < state.high_watermark:
            return self._disclaim(offset)
        # Ordered even if it removes no record: the epoch history may have to be cut (KAFKA-10706).
        return [effects.TruncateTo(offset=offset)]

    def _disclaim(self, offset: Offset) -> Sequence[Effect]:
        """Stop fetching and leave ISR and ELR: the leader lacks [offset, high watermark)."""
        state = self._state
        state.become(Follower(leader_id=state.leader_id, is_contradicted=True))
        disclaimed = effects.DisclaimLog(
            leader_id=state.leader_id, offset=offset, high_watermark=state.high_watermark
        )
        return [effects.StopFetching(), disclaimed]

    def _fetch_out_of_range(self, event: events.FetchOutOfRange) -> Sequence[Effect]:
        """Start over at the leader's log start if this log ends below it or is empty.

        Otherwise cut the records of an epoch above the leader epoch.
        """
        state = self._state
        if not self.still_fits(event):
            return NO_EFFECTS
        if event.log_start_offset < 0:
            return NO_EFFECTS  # the leader did not send its log start: fetch again
        is_behind = event.log_start_offset > state.log_end_offset
        if is_behind and state.is_member and state.log_start_offset < state.high_watermark:
            return self._disclaim(state.log_start_offset)
        if is_behind or self._holds_nothing:
            return [effects.StartOverAt(offset=event.log_start_offset)]
        if event.last_fetched_epoch > event.leader_epoch:  # damaged: no checksum covers an epoch
            return self._truncate(event.leader_epoch, state.log_end_offset)
        return NO_EFFECTS

    def batch_began_earlier(self, event: events.BatchBeganEarlier) -> Sequence[Effect]:
        """Begin a log without records where the batch begins.

        DeleteRecords may put the leader's log start within a batch, and a batch is sent whole.
        """
        if not self.still_fits(event) or not self._holds_nothing:
            return NO_EFFECTS
        return [effects.StartOverAt(offset=event.base_offset)]

    @property
    def _holds_nothing(self) -> bool:
        return self._state.log_start_offset == self._state.log_end_offset

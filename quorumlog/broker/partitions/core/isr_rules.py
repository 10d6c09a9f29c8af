"""The rules of the ISR: when a leader proposes a new ISR, and how it applies the response."""

from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.isr import (
    PendingIsr,
    ProposalOutcome,
    is_eligible,
    outcome_of,
)
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS, PartitionState
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.wire.codec.identifiers import BrokerId


@dataclass(frozen=True, slots=True)
class IsrRules:
    """At most one proposal is pending. Sources: KIP-497, KIP-903, KAFKA-7128, 13141, 15221."""

    _state: PartitionState

    def maybe_expand(self, role: Leader, replica: BrokerId) -> Sequence[Effect]:
        """Propose to add `replica`, a follower outside the maximal ISR, if it may join."""
        if role.pending is not None or not self.may_join(role, replica):
            return NO_EFFECTS
        return self.propose(role, role.isr | {replica})

    def may_join(self, role: Leader, replica: BrokerId) -> bool:
        """Whether `replica` reaches the high watermark and the epoch start (KAFKA-7128)."""
        progress = role.followers[replica]
        return (
            progress.log_end_offset >= self._state.high_watermark
            and progress.log_end_offset >= role.epoch_start
            and is_eligible(self._state.brokers, replica, progress.broker_epoch)
        )

    def maybe_shrink(self, role: Leader, now_ms: int) -> Sequence[Effect]:
        """Propose to remove the members that have fallen behind, or repeat a lost proposal."""
        if role.pending is None:
            behind = {replica for replica in role.isr if self._is_behind(role, replica, now_ms)}
            return self.propose(role, role.isr - behind) if behind else NO_EFFECTS
        if role.pending.is_in_flight or role.pending.awaits_metadata:
            return NO_EFFECTS
        return [self._request(role.pending)]

    def _is_behind(self, role: Leader, replica: BrokerId, now_ms: int) -> bool:
        state = self._state
        if replica == state.broker_id:
            return False
        lag_time_max_ms = state.replica_lag_time_max_ms
        return not role.followers[replica].is_caught_up(
            now_ms, state.log_end_offset, lag_time_max_ms
        )

    def propose(self, role: Leader, new_isr: frozenset[BrokerId]) -> Sequence[Effect]:
        """Propose another ISR. Until the response, the members of both count (KIP-497)."""
        members = tuple((member, self.broker_epoch(role, member)) for member in sorted(new_isr))
        role.pending = PendingIsr(partition_epoch=self._state.partition_epoch, members=members)
        role.maximal_isr = role.isr | new_isr
        return [self._request(role.pending)]

    def _request(self, pending: PendingIsr) -> Effect:
        pending.is_in_flight = True
        return effects.ProposeIsr(
            leader_epoch=self._state.leader_epoch,
            partition_epoch=pending.partition_epoch,
            new_isr=pending.members,
        )

    def broker_epoch(self, role: Leader, member: BrokerId) -> int:
        """Return the broker epoch to propose for `member`; -1 for this broker.

        It is the epoch of its last fetch. For a member of the ISR that has not fetched from this
        leader yet it is the registered epoch: the controller removes a restarted broker from the
        ISR when its new process registers.
        """
        brokers = self._state.brokers
        if member == self._state.broker_id:
            return -1
        epoch = role.followers[member].broker_epoch
        if epoch == -1 and member in role.isr and member in brokers:
            return brokers[member].broker_epoch
        return epoch

    def answered(self, role: Leader, event: events.IsrAnswered) -> bool:
        """Handle an AlterPartition response; return whether it settled the proposal."""
        pending = role.pending
        if (
            pending is None
            or not pending.is_in_flight
            or event.asked_epoch != pending.partition_epoch
        ):
            return False  # superseded by the metadata log
        pending.is_in_flight = False
        outcome = outcome_of(event.error_code)
        if outcome is ProposalOutcome.COMMITTED and not self._fits(role, event):
            outcome = ProposalOutcome.AWAIT_METADATA
        match outcome:
            case ProposalOutcome.COMMITTED:
                self._state.partition_epoch = event.partition_epoch
                self.take_committed(role, frozenset(event.isr))
                return True
            case ProposalOutcome.REFUSED:
                self.take_committed(role, role.isr)
                return True
            case ProposalOutcome.AWAIT_METADATA:
                pending.awaits_metadata = True
            case ProposalOutcome.ASK_AGAIN:
                pass  # at the next tick
        return False

    def _fits(self, role: Leader, event: events.IsrAnswered) -> bool:
        """Whether the committed state can be applied before the metadata log delivers it."""
        state = self._state
        return (
            event.leader_epoch == state.leader_epoch
            and event.partition_epoch >= state.partition_epoch
            and state.broker_id in event.isr
            and {*event.isr} <= {state.broker_id, *role.followers}
        )

    def take_committed(self, role: Leader, isr: frozenset[BrokerId]) -> None:
        """Apply the controller's ISR: a proposal of an older partition epoch is void."""
        role.isr = role.maximal_isr = isr
        role.pending = None

"""What a replica does as a leader: judge fetches, count who holds what, propose the ISR."""

from collections.abc import Iterable, Sequence

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.deletions import TO_HIGH_WATERMARK
from quorumlog.broker.partitions.core.divergence import judge_fetch
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.isr import (
    PendingIsr,
    Progress,
    Verdict,
    is_eligible,
    verdict_on,
)
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS, PartitionState
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, UNKNOWN_OFFSET, BrokerId, Epoch, Offset


class LeaderRules(PartitionState):
    """Sources: KIP-497, KIP-903, KIP-966, KAFKA-7128, 13091, 13141, 13837, 15221."""

    # --- What a client asks ---

    def append_refusal(self, acks: int) -> ErrorCode:
        """Say why we may not append for a producer that asks for `acks`, or NONE."""
        if not isinstance(self.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if acks == -1 and len(self.role.isr) < self.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def commit_outcome(self) -> ErrorCode:
        """Say how an acks=all produce ends whose records the high watermark has passed."""
        if not isinstance(self.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(self.role.maximal_isr) < self.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def epoch_refusal(self, leader_epoch: Epoch, *, leader_only: bool = True) -> ErrorCode:
        """Say why we may not serve as the leader of `leader_epoch`; NO_EPOCH: any (KIP-320).

        Without `leader_only` a follower in that epoch serves as well.
        """
        if leader_epoch > self.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if NO_EPOCH < leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_only and not isinstance(self.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def judge_read(
        self,
        leader_epoch: Epoch,
        fetch_offset: Offset,
        last_fetched_epoch: Epoch,
        *,
        leader_only: bool = True,
    ) -> AnswerFetch:
        """Judge a fetch, whoever sent it; changes nothing."""
        refusal = self.epoch_refusal(leader_epoch, leader_only=leader_only)
        if refusal is not ErrorCode.NONE:
            return AnswerFetch(error_code=refusal)
        error_code, diverging = judge_fetch(
            self.epochs,
            fetch_offset=fetch_offset,
            last_fetched_epoch=last_fetched_epoch,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
        )
        return AnswerFetch(error_code=error_code, diverging=diverging)

    def judge_deletion(self, offset: int, policy: ErrorCode) -> tuple[ErrorCode, Offset]:
        """Say whether the records below `offset` may be deleted, and below which in fact (KIP-107).

        -1 is the high watermark; `policy` is what the topic's settings say. Changes nothing.
        """
        if not isinstance(self.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, UNKNOWN_OFFSET
        if policy is not ErrorCode.NONE:
            return policy, UNKNOWN_OFFSET
        required = self.high_watermark if offset == TO_HIGH_WATERMARK else Offset(offset)
        if not 0 <= required <= self.high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE, UNKNOWN_OFFSET
        return ErrorCode.NONE, required

    def low_watermark(self) -> Offset:
        """Return below which offset no live replica will ever show a record; -1 if not known.

        A fenced broker does not count: it follows our log start when it returns.
        """
        low_watermark = self.kept_log_start_offset
        if isinstance(self.role, Leader):
            for replica, progress in self.role.followers.items():
                broker = self.brokers.get(replica)
                if broker is not None and not broker.fenced:
                    low_watermark = min(low_watermark, progress.log_start_offset)
        return low_watermark

    # --- Followers fetch ---

    def _handle_follower_fetched(
        self, now_ms: int, event: events.FollowerFetched
    ) -> Sequence[Effect]:
        answer = self.judge_read(event.leader_epoch, event.fetch_offset, event.last_fetched_epoch)
        role = self.role
        if not isinstance(role, Leader):
            return [answer]
        progress = role.followers.get(event.broker_id)
        if progress is None:
            # It is not assigned here, or knows it before we do (KAFKA-13837).
            return [AnswerFetch(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)]
        if self._is_replaced(progress, event):
            return [AnswerFetch(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        if answer.error_code is not ErrorCode.NONE or answer.diverging is not None:
            return [answer]  # what it claims to hold is not our log: it counts for nothing (13141)
        progress.fetched(now_ms, event.fetch_offset, event.broker_epoch, self.log_end_offset)
        progress.log_start_offset = event.log_start_offset
        changed: Sequence[Effect] = NO_EFFECTS
        if event.broker_id not in role.maximal_isr:
            changed = self._maybe_expand(role, event.broker_id)
        # First what it completes: the answer carries the high watermark.
        return [*changed, *self._maybe_commit(now_ms), answer]

    def _is_replaced(self, progress: Progress, event: events.FollowerFetched) -> bool:
        """Whether a later process of this broker is known: this one's fetch is an echo."""
        if event.broker_epoch == -1:
            return False
        broker = self.brokers.get(event.broker_id)
        registered = -1 if broker is None else broker.broker_epoch
        return event.broker_epoch < max(progress.broker_epoch, registered)

    # --- What is committed ---

    def _maybe_commit(self, now_ms: int) -> Sequence[Effect]:
        """Advance the high watermark to what every replica that counts holds."""
        role = self.role
        if not isinstance(role, Leader) or len(role.isr) < self.min_insync_replicas:
            return NO_EFFECTS  # strict min ISR (KIP-966)
        committed = self.log_end_offset
        for progress in self._replicas_that_count(role, now_ms):
            if progress.log_end_offset < committed:  # noqa: PLR1730 - `min` costs a call each
                committed = progress.log_end_offset
        if committed <= self.high_watermark:
            return NO_EFFECTS
        self.high_watermark = committed
        return [effects.CompleteBelow(high_watermark=committed)]

    def _replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[Progress]:
        """Return the followers without which nothing is committed.

        The maximal ISR: one of them may be granted before we hear of it (KIP-497). And whoever
        has caught up and is about to join: else it would never reach a moving high watermark.
        """
        maximal_isr = role.maximal_isr
        return [
            progress
            for replica, progress in role.followers.items()
            if replica in maximal_isr or self._is_about_to_join(replica, progress, now_ms)
        ]

    def _is_about_to_join(self, replica: BrokerId, progress: Progress, now_ms: int) -> bool:
        return (
            progress.log_end_offset >= 0
            and progress.is_caught_up(now_ms, self.log_end_offset, self.replica_lag_time_max_ms)
            and is_eligible(self.brokers, replica, progress.broker_epoch)
        )

    # --- Who is in sync ---

    def _maybe_expand(self, role: Leader, replica: BrokerId) -> Sequence[Effect]:
        if role.pending is not None or not self._may_join(role, replica):
            return NO_EFFECTS
        return self._propose(role, role.isr | {replica})

    def _may_join(self, role: Leader, replica: BrokerId) -> bool:
        """Whether it holds all that is committed, and all from before this epoch (KAFKA-7128)."""
        progress = role.followers[replica]
        return (
            progress.log_end_offset >= self.high_watermark
            and progress.log_end_offset >= role.epoch_start
            and is_eligible(self.brokers, replica, progress.broker_epoch)
        )

    def _handle_ticked(self, now_ms: int) -> Sequence[Effect]:
        """Ask again, or let go of who has fallen behind; look again at what is committed."""
        role = self.role
        if not isinstance(role, Leader):
            return NO_EFFECTS
        proposed: Sequence[Effect] = NO_EFFECTS
        if role.pending is None:
            behind = {replica for replica in role.isr if self._is_behind(role, replica, now_ms)}
            if behind:
                proposed = self._propose(role, role.isr - behind)
        elif not role.pending.is_in_flight and not role.pending.awaits_metadata:
            proposed = [self._proposal(role.pending)]
        # One who was about to join may have fallen silent: it holds up nobody any more.
        return [*proposed, *self._maybe_commit(now_ms)]

    def _is_behind(self, role: Leader, replica: BrokerId, now_ms: int) -> bool:
        if replica == self.broker_id:
            return False
        progress, lag_time = role.followers[replica], self.replica_lag_time_max_ms
        return not progress.is_caught_up(now_ms, self.log_end_offset, lag_time)

    def _propose(self, role: Leader, new_isr: frozenset[BrokerId]) -> Sequence[Effect]:
        """Ask for another ISR. Until we know, all that are in either count (KIP-497)."""
        members = tuple((member, self._broker_epoch(role, member)) for member in sorted(new_isr))
        role.pending = PendingIsr(partition_epoch=self.partition_epoch, members=members)
        role.maximal_isr = role.isr | new_isr
        return [self._proposal(role.pending)]

    def _proposal(self, pending: PendingIsr) -> Effect:
        pending.is_in_flight = True
        return effects.ProposeIsr(
            leader_epoch=self.leader_epoch,
            partition_epoch=pending.partition_epoch,
            new_isr=pending.members,
        )

    def _broker_epoch(self, role: Leader, member: BrokerId) -> int:
        """Return the epoch of the process that we count on; -1 for our own.

        That of its last fetch. One of the ISR that has not fetched from us yet is the registered
        one: the controller takes a later process out of the ISR as it registers.
        """
        if member == self.broker_id:
            return -1
        epoch = role.followers[member].broker_epoch
        if epoch == -1 and member in role.isr and member in self.brokers:
            return self.brokers[member].broker_epoch
        return epoch

    def _handle_isr_answered(self, now_ms: int, event: events.IsrAnswered) -> Sequence[Effect]:
        role = self.role
        if not isinstance(role, Leader) or role.pending is None:
            return NO_EFFECTS
        pending = role.pending
        if not pending.is_in_flight or event.asked_epoch != pending.partition_epoch:
            return NO_EFFECTS  # superseded by the metadata log
        pending.is_in_flight = False
        verdict = verdict_on(event.error_code)
        if verdict is Verdict.COMMITTED and not self._fits(role, event):
            verdict = Verdict.AWAIT_METADATA
        match verdict:
            case Verdict.COMMITTED:
                self.partition_epoch = event.partition_epoch
                self._take_committed_isr(role, frozenset(event.isr))
                return self._maybe_commit(now_ms)  # a shrink may complete produces (KAFKA-13091)
            case Verdict.REFUSED:
                self._take_committed_isr(role, role.isr)
                return self._maybe_commit(now_ms)
            case Verdict.AWAIT_METADATA:
                pending.awaits_metadata = True
            case Verdict.ASK_AGAIN:
                pass  # at the next tick
        return NO_EFFECTS

    def _fits(self, role: Leader, event: events.IsrAnswered) -> bool:
        """Whether a committed state is one that we can take over without the metadata log."""
        return (
            event.leader_epoch == self.leader_epoch
            and event.partition_epoch >= self.partition_epoch
            and self.broker_id in event.isr
            and {*event.isr} <= {self.broker_id, *role.followers}
        )

    def _take_committed_isr(self, role: Leader, isr: frozenset[BrokerId]) -> None:
        """Take the controller's word: what we asked for in older partition epochs is void."""
        role.isr = role.maximal_isr = isr
        role.pending = None


def new_followers(
    replicas: Iterable[BrokerId], isr: frozenset[BrokerId], *, leader_id: BrokerId, now_ms: int
) -> dict[BrokerId, Progress]:
    """Return what a new leader knows: nothing, in this epoch; some may have to truncate first.

    A member of the ISR gets one full lag time in which to find its new leader.
    """
    return {
        replica: Progress(caught_up_ms=now_ms if replica in isr else None)
        for replica in replicas
        if replica != leader_id
    }

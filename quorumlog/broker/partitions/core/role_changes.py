"""The changes of a replica's role. The metadata image alone decides them."""

from collections.abc import Sequence
from dataclasses import dataclass

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.leadership import new_followers
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS, PartitionState
from quorumlog.broker.partitions.core.roles import Follower, Leader, Role, Unassigned
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER


@dataclass(frozen=True, slots=True)
class RoleChanges:
    """Role changes. Sources: KIP-101, KIP-497, KIP-704, KAFKA-7415 (an epoch without records)."""

    _state: PartitionState
    _isr: IsrRules
    _high_watermark: HighWatermarkRule

    def published(self, now_ms: int, event: events.PartitionPublished) -> Sequence[Effect]:
        """Apply an image of the partition, unless a newer state is already applied."""
        state, image = self._state, event.image
        state.brokers = event.brokers
        if image.partition_epoch < state.partition_epoch or image.leader_epoch < state.leader_epoch:
            return NO_EFFECTS  # the response to our AlterPartition came before the metadata log
        is_new_leadership = image.leader_epoch > state.leader_epoch
        is_newer = image.partition_epoch > state.partition_epoch
        state.min_insync_replicas = min(event.min_insync_replicas, len(image.replicas))
        state.leader_epoch, state.partition_epoch = image.leader_epoch, image.partition_epoch
        state.leader_id = image.leader_id
        state.is_member = state.broker_id in image.isr or state.broker_id in image.elr
        match state.role:
            case Leader() as role if not is_new_leadership:
                if is_newer:
                    self._take_over(role, now_ms, image)
                return self._high_watermark.maybe_advance(role, now_ms)
            case Follower() as role if not is_new_leadership and (
                state.is_member or not role.is_contradicted
            ):
                return NO_EFFECTS
            case role:
                return self.begin_epoch(role, now_ms, image)

    def removed(self, error_code: ErrorCode) -> Sequence[Effect]:
        """End the role: this broker has no replica any more. Waiting produces get `error_code`."""
        role = self._state.role
        if isinstance(role, Unassigned):
            return NO_EFFECTS
        self._state.become(Unassigned())
        self._state.leader_id = NO_LEADER
        ordered: list[Effect] = [effects.StopFetching(), effects.FailWaiting(error_code=error_code)]
        if isinstance(role, Leader):
            ordered.append(effects.AnnounceResignation(leader_epoch=self._state.leader_epoch))
        return ordered

    def _take_over(self, role: Leader, now_ms: int, image: PartitionImage) -> None:
        """Apply the ISR and the replicas of a newer partition epoch, as the same leader."""
        self._isr.take_committed(role, frozenset(image.isr))
        fresh = new_followers(
            image.replicas, frozenset(), leader_id=self._state.broker_id, now_ms=now_ms
        )
        known = role.followers
        role.followers = {replica: known.get(replica, fresh[replica]) for replica in fresh}

    def begin_epoch(self, before: Role, now_ms: int, image: PartitionImage) -> Sequence[Effect]:
        """Lead or follow in a new leader epoch. A leader that leads on keeps waiting produces."""
        state = self._state
        if image.leader_id == state.broker_id:
            return self._lead(now_ms, image)
        state.become(Follower(leader_id=image.leader_id))
        ordered: list[Effect] = []
        if isinstance(before, Leader):
            ordered.append(effects.FailWaiting(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
            ordered.append(effects.AnnounceResignation(leader_epoch=state.leader_epoch))
        if image.leader_id == NO_LEADER:
            return [*ordered, effects.StopFetching()]
        fetching = effects.StartFetching(leader_id=image.leader_id, leader_epoch=state.leader_epoch)
        return [*ordered, fetching]

    def _lead(self, now_ms: int, image: PartitionImage) -> Sequence[Effect]:
        state = self._state
        isr, start = frozenset(image.isr), state.log_end_offset
        followers = new_followers(image.replicas, isr, leader_id=state.broker_id, now_ms=now_ms)
        role = Leader(epoch_start=start, isr=isr, maximal_isr=isr, followers=followers)
        state.become(role)
        return [
            effects.StopFetching(),
            # Even if no record follows: a replica that truncates must find this epoch (7415).
            effects.AssignEpoch(leader_epoch=state.leader_epoch, start_offset=start),
            effects.AnnounceLeadership(leader_epoch=state.leader_epoch),
            *self._high_watermark.maybe_advance(role, now_ms),
            # Its first ISR proposal reports that the surviving log is open and trusted from now on.
            *(self._isr.propose(role, isr) if image.is_recovering else ()),
        ]

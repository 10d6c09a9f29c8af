"""Replicas and producers with one broken rule each: three of them lose what was committed.

The schedules are those of `test_partition_cluster.py`. A mutant that is not found there says that
the schedules miss something.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.following import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr import FollowerProgress
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.leading import Leadership
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import Marks, PartitionInvariants
from quorumlog.broker.partitions.core.producer_state import Check, ProducedBatch, ProducerStates
from quorumlog.broker.partitions.core.role_changes import RoleChanges
from quorumlog.broker.partitions.core.roles import Leader, Role
from quorumlog.broker.partitions.core.serving import Serving
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, BrokerId, Epoch, Offset
from tests.property.test_partition_cluster import Cluster, Loss

SEEDS = 2000


class Unchecked(PartitionInvariants):
    """The invariants would find most mutants first: here the outcome must."""

    def check(self, before: Marks, *, truncates: bool = False) -> None:
        pass


class CommitsAtItsOwnLogEnd(HighWatermarkRule):
    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        return ()


class CountsOnlyTheGrantedIsr(HighWatermarkRule):
    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        return [progress for who, progress in role.followers.items() if who in role.isr]


class LetsLaggardsJoin(IsrRules):
    def may_join(self, role: Leader, replica: BrokerId) -> bool:
        return True


class CountsEchoesOfOlderProcesses(Leadership):
    def is_replaced(self, progress: FollowerProgress, event: events.FollowerFetched) -> bool:
        return False


class IgnoresBrokerEpochs(IsrRules):
    def broker_epoch(self, role: Leader, member: BrokerId) -> int:
        state = self._state
        return -1 if member == state.broker_id else state.brokers[member].broker_epoch

    def may_join(self, role: Leader, replica: BrokerId) -> bool:
        floor = max(self._state.high_watermark, role.epoch_start)
        return role.followers[replica].log_end_offset >= floor


class CountsDivergingFollowers(Leadership):
    def follower_fetched(
        self, role: Leader, now_ms: int, event: events.FollowerFetched
    ) -> Sequence[Effect]:
        if event.broker_id in role.followers:
            role.followers[event.broker_id].log_end_offset = event.fetch_offset
        return super().follower_fetched(role, now_ms, event)


class IgnoresDivergence(Serving):
    def judge_read(
        self,
        leader_epoch: Epoch,
        fetch_offset: Offset,
        last_fetched_epoch: Epoch,
        *,
        leader_only: bool = True,
    ) -> AnswerFetch:
        return super().judge_read(leader_epoch, fetch_offset, NO_EPOCH, leader_only=leader_only)


class TruncatesToItsHighWatermark(Followership):
    """As before KIP-101, with the next."""

    def leader_diverged(self, event: events.LeaderDiverged) -> Sequence[Effect]:
        if not self.still_fits(event):
            return ()
        return [effects.TruncateTo(offset=self._state.high_watermark)]


class TruncatesBeforeItFollows(RoleChanges):
    def begin_epoch(self, before: Role, now_ms: int, image: PartitionImage) -> Sequence[Effect]:
        ordered = super().begin_epoch(before, now_ms, image)
        if self._state.is_leader:
            return ordered
        return [effects.TruncateTo(offset=self._state.high_watermark), *ordered]


class TakesLateAnswers(Followership):
    """Looks at the length of its log only: found by this very test."""

    def accepts_answer(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> bool:
        state = self._state
        return leader_epoch == state.leader_epoch and fetch_offset == state.log_end_offset


class ShrinksBeforeItIsGranted(IsrRules):
    def propose(self, role: Leader, new_isr: frozenset[BrokerId]) -> Sequence[Effect]:
        ordered = super().propose(role, new_isr)
        role.maximal_isr = new_isr
        return ordered


class TakesAnyRefusalForFinal(Leadership):
    """What nobody knows may have been granted."""

    def isr_answered(
        self, role: Leader, now_ms: int, event: events.IsrAnswered
    ) -> Sequence[Effect]:
        if event.error_code is ErrorCode.REQUEST_TIMED_OUT:
            event = replace(event, error_code=ErrorCode.OPERATION_NOT_ATTEMPTED)
        return super().isr_answered(role, now_ms, event)


class AnswersBeforeItsFollowersDelete(Serving):
    def low_watermark(self) -> Offset:
        return self._state.kept_log_start_offset


class AnswersBeforeItsOwnStartIsKept(Serving):
    def low_watermark(self) -> Offset:
        state = self._state
        kept, state.kept_log_start_offset = state.kept_log_start_offset, state.log_start_offset
        low_watermark = super().low_watermark()
        state.kept_log_start_offset = kept
        return low_watermark


class AppendsWhatItHas(ProducerStates):
    def check(self, batch: ProducedBatch) -> Check:
        return Check(ErrorCode.NONE)


class KnowsOnlyTheLastBatch(ProducerStates):
    def check(self, batch: ProducedBatch) -> Check:
        for producer in self._producers.values():
            while len(producer.batches) > 1:
                producer.batches.popleft()
        return super().check(batch)


class KeepsWhatWasTruncated(ProducerStates):
    def rebuild(self, batches: Iterable[ProducedBatch]) -> None:
        if not len(self):
            super().rebuild(batches)


class ForgetsWhatItFollowed(ProducerStates):
    def rebuild(self, batches: Iterable[ProducedBatch]) -> None:
        pass


MUTANTS = {
    "commits at its own log end": PartitionRules(high_watermark=CommitsAtItsOwnLogEnd),
    "counts only the granted ISR": PartitionRules(high_watermark=CountsOnlyTheGrantedIsr),
    "lets laggards join": PartitionRules(isr=LetsLaggardsJoin),
    "counts diverging followers": PartitionRules(leadership=CountsDivergingFollowers),
    "ignores divergence": PartitionRules(serving=IgnoresDivergence),
    "truncates to its high watermark": PartitionRules(
        followership=TruncatesToItsHighWatermark, role_changes=TruncatesBeforeItFollows
    ),
    "ignores broker epochs": PartitionRules(
        isr=IgnoresBrokerEpochs, leadership=CountsEchoesOfOlderProcesses
    ),
    "takes late answers": PartitionRules(followership=TakesLateAnswers),
    "shrinks before it is granted": PartitionRules(isr=ShrinksBeforeItIsGranted),
    "takes any refusal for final": PartitionRules(leadership=TakesAnyRefusalForFinal),
    "answers before its followers delete": PartitionRules(serving=AnswersBeforeItsFollowersDelete),
    "answers before its own start is kept": PartitionRules(serving=AnswersBeforeItsOwnStartIsKept),
}
# Of those that one schedule in thousands finds.
FIRST_SEEDS = {"takes late answers": 2900, "ignores broker epochs": 5000}
PRODUCER_MUTANTS = [
    AppendsWhatItHas,
    KnowsOnlyTheLastBatch,
    KeepsWhatWasTruncated,
    ForgetsWhatItFollowed,
]


def run_many(
    first: int = 0,
    *,
    rules: PartitionRules = KAFKA_RULES,
    producers_class: type[ProducerStates] = ProducerStates,
) -> None:
    for seed in range(first, first + SEEDS):
        Cluster(seed, rules, producers_class).run()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_loses_what_was_committed(mutant: str) -> None:
    rules = replace(MUTANTS[mutant], invariants=Unchecked)
    with pytest.raises(Loss):
        run_many(FIRST_SEEDS.get(mutant, 0), rules=rules)


@pytest.mark.parametrize("mutant", PRODUCER_MUTANTS)
def test_a_mutant_repeats_or_misses_a_batch(mutant: type[ProducerStates]) -> None:
    with pytest.raises(Loss):
        run_many(producers_class=mutant)

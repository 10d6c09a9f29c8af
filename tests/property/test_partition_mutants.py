"""Replicas and producers with one broken rule each: three of them lose what was committed.

The schedules are those of `test_partition_cluster.py`. A mutant that is not found there says that
the schedules miss something.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.isr import Progress
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.partitions.core.partition_state import Marks
from quorumlog.broker.partitions.core.producer_state import Check, ProducedBatch, ProducerStates
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, BrokerId, Epoch, Offset
from tests.property.test_partition_cluster import Cluster, Loss

SEEDS = 2000


class Unchecked(Partition):
    """The invariants inside the core would find most mutants first: here the outcome must."""

    def check_invariants(self, before: Marks, *, truncates: bool = False) -> None:
        pass


class CommitsAtItsOwnLogEnd(Unchecked):
    def _replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[Progress]:
        return ()


class CountsOnlyTheGrantedIsr(Unchecked):
    def _replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[Progress]:
        return [progress for who, progress in role.followers.items() if who in role.isr]


class LetsLaggardsJoin(Unchecked):
    def _may_join(self, role: Leader, replica: BrokerId) -> bool:
        return True


class IgnoresBrokerEpochs(Unchecked):
    def _is_replaced(self, progress: Progress, event: events.FollowerFetched) -> bool:
        return False

    def _broker_epoch(self, role: Leader, member: BrokerId) -> int:
        return -1 if member == self.broker_id else self.brokers[member].broker_epoch

    def _may_join(self, role: Leader, replica: BrokerId) -> bool:
        floor = max(self.high_watermark, role.epoch_start)
        return role.followers[replica].log_end_offset >= floor


class CountsDivergingFollowers(Unchecked):
    def _handle_follower_fetched(
        self, now_ms: int, event: events.FollowerFetched
    ) -> Sequence[Effect]:
        role = self.role
        if isinstance(role, Leader) and event.broker_id in role.followers:
            role.followers[event.broker_id].log_end_offset = event.fetch_offset
        return super()._handle_follower_fetched(now_ms, event)


class IgnoresDivergence(Unchecked):
    def judge_read(
        self,
        leader_epoch: Epoch,
        fetch_offset: Offset,
        last_fetched_epoch: Epoch,
        *,
        leader_only: bool = True,
    ) -> AnswerFetch:
        return super().judge_read(leader_epoch, fetch_offset, NO_EPOCH, leader_only=leader_only)


class TruncatesToItsHighWatermark(Unchecked):
    """As before KIP-101."""

    def _handle_leader_diverged(self, event: events.LeaderDiverged) -> Sequence[Effect]:
        if not self._still_fits(event):
            return ()
        return [effects.TruncateTo(offset=self.high_watermark)]

    def _lead_or_follow(self, now_ms: int, image: object) -> Sequence[Effect]:
        ordered = super()._lead_or_follow(now_ms, image)  # type: ignore[arg-type]  # a PartitionImage
        if self.is_leader:
            return ordered
        return [effects.TruncateTo(offset=self.high_watermark), *ordered]


class TakesLateAnswers(Unchecked):
    """Looks at the length of its log only: found by this very test."""

    def accepts_answer(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> bool:
        return self._follows_in(leader_epoch) and fetch_offset == self.log_end_offset


class ShrinksBeforeItIsGranted(Unchecked):
    def _propose(self, role: Leader, new_isr: frozenset[BrokerId]) -> Sequence[Effect]:
        ordered = super()._propose(role, new_isr)
        role.maximal_isr = new_isr
        return ordered


class TakesAnyRefusalForFinal(Unchecked):
    """What nobody knows may have been granted."""

    def _handle_isr_answered(self, now_ms: int, event: events.IsrAnswered) -> Sequence[Effect]:
        if event.error_code is ErrorCode.REQUEST_TIMED_OUT:
            event = replace(event, error_code=ErrorCode.OPERATION_NOT_ATTEMPTED)
        return super()._handle_isr_answered(now_ms, event)


class AnswersBeforeItsFollowersDelete(Unchecked):
    def low_watermark(self) -> Offset:
        return self.kept_log_start_offset


class AnswersBeforeItsOwnStartIsKept(Unchecked):
    def low_watermark(self) -> Offset:
        kept, self.kept_log_start_offset = self.kept_log_start_offset, self.log_start_offset
        low_watermark = super().low_watermark()
        self.kept_log_start_offset = kept
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


MUTANTS = [
    CommitsAtItsOwnLogEnd,
    CountsOnlyTheGrantedIsr,
    LetsLaggardsJoin,
    CountsDivergingFollowers,
    IgnoresDivergence,
    TruncatesToItsHighWatermark,
    IgnoresBrokerEpochs,
    TakesLateAnswers,
    ShrinksBeforeItIsGranted,
    TakesAnyRefusalForFinal,
    AnswersBeforeItsFollowersDelete,
    AnswersBeforeItsOwnStartIsKept,
]
# Of those that one schedule in thousands finds.
FIRST_SEEDS: dict[type[Partition], int] = {TakesLateAnswers: 2900, IgnoresBrokerEpochs: 5000}
PRODUCER_MUTANTS = [
    AppendsWhatItHas,
    KnowsOnlyTheLastBatch,
    KeepsWhatWasTruncated,
    ForgetsWhatItFollowed,
]


def run_many(
    partition_class: type[Partition] = Partition,
    producers_class: type[ProducerStates] = ProducerStates,
) -> None:
    first = FIRST_SEEDS.get(partition_class, 0)
    for seed in range(first, first + SEEDS):
        Cluster(seed, partition_class, producers_class).run()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_loses_what_was_committed(mutant: type[Partition]) -> None:
    with pytest.raises(Loss):
        run_many(partition_class=mutant)


@pytest.mark.parametrize("mutant", PRODUCER_MUTANTS)
def test_a_mutant_repeats_or_misses_a_batch(mutant: type[ProducerStates]) -> None:
    with pytest.raises(Loss):
        run_many(producers_class=mutant)

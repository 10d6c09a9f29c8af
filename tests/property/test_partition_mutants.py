"""Replicas and producers with one broken rule each: three of them lose what was committed.

The schedules are those of `test_partition.py`. A mutant that is not found there says that
the schedules miss something.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.followership import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.leadership import Leadership
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.producer_state import Check, ProducerStates
from quorumlog.broker.partitions.core.reads import Reads
from quorumlog.broker.partitions.core.role_changes import RoleChanges
from quorumlog.broker.partitions.core.roles import Leader, Role
from quorumlog.chaos.mutants.parts import Unchecked
from quorumlog.chaos.mutants.replication import (
    CommitsAlone,
    CountsDivergingFollowers,
    CountsEchoesOfOlderProcesses,
    CountsOnlyTheGrantedIsr,
    IgnoresBrokerEpochs,
    IgnoresDivergence,
    LetsLaggardsJoin,
    TakesAnswersToOlderProposals,
    TruncatesToItsHighWatermark,
)
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from quorumlog.wire.codec.records import BatchHeader
from tests.property.test_partition import Cluster, Loss

SEEDS = 2000


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


class AnswersBeforeItsFollowersDelete(Reads):
    def low_watermark(self) -> Offset:
        return self._state.kept_log_start_offset


class AnswersBeforeItsOwnStartIsKept(Reads):
    def low_watermark(self) -> Offset:
        state = self._state
        kept, state.kept_log_start_offset = state.kept_log_start_offset, state.log_start_offset
        low_watermark = super().low_watermark()
        state.kept_log_start_offset = kept
        return low_watermark


class CommitsBelowMinIsr(HighWatermarkRule):
    def maybe_advance(self, role: Leader, now_ms: int) -> Sequence[Effect]:
        asked, self._state.min_insync_replicas = self._state.min_insync_replicas, 1
        ordered = super().maybe_advance(role, now_ms)
        self._state.min_insync_replicas = asked
        return ordered


class TakesOldImages(RoleChanges):
    def published(self, now_ms: int, event: events.PartitionPublished) -> Sequence[Effect]:
        self._state.leader_epoch = self._state.partition_epoch = Epoch(-1)
        return super().published(now_ms, event)


class CommitsWhatItLacks(Followership):
    def leader_answered(self, event: events.LeaderAnswered) -> Sequence[Effect]:
        state = self._state
        state.log_end_offset = event.log_end_offset
        state.high_watermark = max(state.high_watermark, event.high_watermark)
        return ()


class CutsWhatItHasCommitted(Followership):
    def leader_diverged(self, event: events.LeaderDiverged) -> Sequence[Effect]:
        is_member, self._state.is_member = self._state.is_member, False
        ordered = super().leader_diverged(event)
        self._state.is_member = is_member
        return ordered


class AppendsWhatItHas(ProducerStates):
    def check(self, batch: BatchHeader) -> Check:
        return Check(ErrorCode.NONE)


class KnowsOnlyTheLastBatch(ProducerStates):
    def check(self, batch: BatchHeader) -> Check:
        for producer in self._producers.values():
            while len(producer.batches) > 1:
                producer.batches.popleft()
        return super().check(batch)


class KeepsWhatWasTruncated(ProducerStates):
    def rebuild(self, batches: Iterable[BatchHeader], known: Iterable[SnapshotEntry] = ()) -> None:
        if not len(self):
            super().rebuild(batches, known)


class ForgetsWhatItFollowed(ProducerStates):
    def rebuild(self, batches: Iterable[BatchHeader], known: Iterable[SnapshotEntry] = ()) -> None:
        pass


MUTANTS = {
    "commits at its own log end": PartitionRules(high_watermark=CommitsAlone),
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
    "takes answers to older proposals": PartitionRules(isr=TakesAnswersToOlderProposals),
    "takes any refusal for final": PartitionRules(leadership=TakesAnyRefusalForFinal),
    "answers before its followers delete": PartitionRules(serving=AnswersBeforeItsFollowersDelete),
    "answers before its own start is kept": PartitionRules(serving=AnswersBeforeItsOwnStartIsKept),
}
# Of those that one schedule in thousands finds.
FIRST_SEEDS = {
    "takes late answers": 2900,
    "ignores broker epochs": 5000,
    "takes answers to older proposals": 5000,
}
INVARIANTS = {
    "1: ": PartitionRules(role_changes=TakesOldImages),
    "2: ": PartitionRules(followership=CommitsWhatItLacks),
    "3: ": PartitionRules(isr=ShrinksBeforeItIsGranted),
    "4: ": PartitionRules(high_watermark=CommitsAlone),
    "5: ": PartitionRules(isr=LetsLaggardsJoin),
    "6: ": PartitionRules(high_watermark=CommitsBelowMinIsr),
    "8: ": PartitionRules(followership=CutsWhatItHasCommitted),
}
"""By the number of the invariant that finds the mutant before anything is lost."""
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


@pytest.mark.planted
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_loses_what_was_committed(mutant: str) -> None:
    rules = replace(MUTANTS[mutant], invariants=Unchecked)
    with pytest.raises(Loss):
        run_many(FIRST_SEEDS.get(mutant, 0), rules=rules)


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_an_invariant_finds_a_mutant(invariant: str) -> None:
    with pytest.raises(InvariantViolation, match=invariant):  # noqa: PT012 - many lives
        for seed in range(SEEDS):
            cluster = Cluster(seed, INVARIANTS[invariant], min_insync=2)
            cluster.run()
            cluster.contradict()


@pytest.mark.planted
@pytest.mark.parametrize("mutant", PRODUCER_MUTANTS)
def test_a_mutant_repeats_or_misses_a_batch(mutant: type[ProducerStates]) -> None:
    with pytest.raises(Loss):
        run_many(producers_class=mutant)

"""Replicas and producers with one broken rule each: three of them lose what was committed.

The schedules are those of `test_partition.py`. A mutant that is not found there says that
the schedules miss something.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.followership import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.producer_state import Check, ProducerStates
from quorumlog.broker.partitions.core.reads import Reads
from quorumlog.broker.partitions.core.role_changes import RoleChanges
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.chaos.mutants.parts import UNCHECKED_RULES, with_broken
from quorumlog.chaos.mutants.replication import REPLICAS
from quorumlog.invariants import InvariantViolation
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset
from quorumlog.wire.codec.records import BatchHeader
from tests.property.test_partition import Cluster, Loss

SEEDS = 2000
NOT_HERE = {"never_looks_at_the_clock", "takes_up_logs_of_deleted_topics"}
"""They break no rule of a core, or lose nothing: docs/recall.md names the tests that find them."""


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
    **{name: mutant.parts.partition for name, mutant in REPLICAS.items() if name not in NOT_HERE},
    "answers before its followers delete": with_broken(
        UNCHECKED_RULES, AnswersBeforeItsFollowersDelete
    ),
    "answers before its own start is kept": with_broken(
        UNCHECKED_RULES, AnswersBeforeItsOwnStartIsKept
    ),
}
# Of those that one schedule in thousands finds.
FIRST_SEEDS = {
    "takes_late_answers": 2900,
    "ignores_broker_epochs": 5000,
    "takes_answers_to_older_proposals": 5000,
}


def checked(name: str) -> PartitionRules:
    return replace(REPLICAS[name].parts.partition, invariants=KAFKA_RULES.invariants)


INVARIANTS = {
    "1: ": PartitionRules(role_changes=TakesOldImages),
    "2: ": PartitionRules(followership=CommitsWhatItLacks),
    "3: ": checked("shrinks_before_it_is_granted"),
    "4: ": checked("commits_alone"),
    "5: ": checked("lets_laggards_join"),
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
    with pytest.raises(Loss):
        run_many(FIRST_SEEDS.get(mutant, 0), rules=MUTANTS[mutant])


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

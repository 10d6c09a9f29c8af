"""Replicas and controllers that break one rule each: the worlds with brokers must find them.

They do not check themselves, so that it is the oracle that must find them.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import AnswerFetch, Effect
from quorumlog.broker.partitions.core.following import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr import FollowerProgress
from quorumlog.broker.partitions.core.isr_rules import IsrRules
from quorumlog.broker.partitions.core.leading import Leadership
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import Marks, PartitionInvariants
from quorumlog.broker.partitions.core.role_changes import RoleChanges
from quorumlog.broker.partitions.core.roles import Leader, Role
from quorumlog.broker.partitions.core.serving import Serving
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.partitions import Located, PartitionDecisions
from quorumlog.metadata_quorum.controller.requests import (
    AlterPartitions,
    ControllerRequest,
    Decision,
    IsrResults,
)
from quorumlog.metadata_quorum.controller_client import BrokerRegistration, IsrProposal
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, BrokerId, Epoch, Offset

# ruff: noqa: ARG002 - a mutant has the signature of what it replaces


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRules:
    """The rules that a world with brokers runs on."""

    partition: PartitionRules = KAFKA_RULES
    controller: type[Controller] = Controller


# --- replicas ---


class Unchecked(PartitionInvariants):
    """Checks nothing: the outcome must show the damage."""

    def check(self, before: Marks, *, truncates: bool = False) -> None:
        """Look away."""


class CommitsAtItsOwnLogEnd(HighWatermarkRule):
    """Commits what the leader alone holds."""

    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        """Break the rule."""
        return ()


class CountsOnlyTheGrantedIsr(HighWatermarkRule):
    """Leaves out replicas that the controller may have granted already."""

    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        """Break the rule."""
        return [progress for member, progress in role.followers.items() if member in role.isr]


class LetsLaggardsJoin(IsrRules):
    """Proposes replicas that are behind."""

    def may_join(self, role: Leader, replica: BrokerId) -> bool:
        """Break the rule."""
        return True


class CountsEchoesOfOlderProcesses(Leadership):
    """Counts a fetch of a process that was replaced."""

    def is_replaced(self, progress: FollowerProgress, event: events.FollowerFetched) -> bool:
        """Break the rule."""
        return False


class IgnoresBrokerEpochs(IsrRules):
    """Takes any process of a broker for the one that fetched."""

    def broker_epoch(self, role: Leader, member: BrokerId) -> int:
        """Break the rule."""
        state = self._state
        return -1 if member == state.broker_id else state.brokers[member].broker_epoch

    def may_join(self, role: Leader, replica: BrokerId) -> bool:
        """Break the rule."""
        floor = max(self._state.high_watermark, role.epoch_start)
        return role.followers[replica].log_end_offset >= floor


class CountsDivergingFollowers(Leadership):
    """Counts a fetch before it compares the logs."""

    def follower_fetched(
        self, role: Leader, now_ms: int, event: events.FollowerFetched
    ) -> Sequence[Effect]:
        """Break the rule."""
        if event.broker_id in role.followers:
            role.followers[event.broker_id].log_end_offset = event.fetch_offset
        return super().follower_fetched(role, now_ms, event)


class IgnoresDivergence(Serving):
    """Sends records to a follower whose log differs."""

    def judge_read(
        self,
        leader_epoch: Epoch,
        fetch_offset: Offset,
        last_fetched_epoch: Epoch,
        *,
        leader_only: bool = True,
    ) -> AnswerFetch:
        """Break the rule."""
        return super().judge_read(leader_epoch, fetch_offset, NO_EPOCH, leader_only=leader_only)


class TruncatesToItsHighWatermark(Followership):
    """Truncates as before KIP-101."""

    def leader_diverged(self, event: events.LeaderDiverged) -> Sequence[Effect]:
        """Break the rule."""
        if not self.still_fits(event):
            return ()
        return [effects.TruncateTo(offset=self._state.high_watermark)]


class _TruncatesBeforeItFollows(RoleChanges):
    def begin_epoch(self, before: Role, now_ms: int, image: PartitionImage) -> Sequence[Effect]:
        ordered = super().begin_epoch(before, now_ms, image)
        if self._state.is_leader:
            return ordered
        return [*ordered, effects.TruncateTo(offset=self._state.high_watermark)]


class _TakesLateAnswers(Followership):
    def accepts_answer(
        self, leader_epoch: Epoch, fetch_offset: Offset, last_fetched_epoch: Epoch
    ) -> bool:
        state = self._state
        return leader_epoch == state.leader_epoch and fetch_offset == state.log_end_offset


class _ShrinksBeforeItIsGranted(IsrRules):
    def propose(self, role: Leader, new_isr: frozenset[BrokerId]) -> Sequence[Effect]:
        ordered = super().propose(role, new_isr)
        role.maximal_isr = new_isr
        return ordered


class _TakesAnyRefusalForFinal(Leadership):
    def isr_answered(
        self, role: Leader, now_ms: int, event: events.IsrAnswered
    ) -> Sequence[Effect]:
        if event.error_code is ErrorCode.REQUEST_TIMED_OUT:
            event = replace(event, error_code=ErrorCode.OPERATION_NOT_ATTEMPTED)
        return super().isr_answered(role, now_ms, event)


# --- controllers ---


class _IgnoresPowerLoss(Controller):
    def decide(
        self, request: ControllerRequest, *, now_ms: int, base_offset: Offset
    ) -> Decision[object]:
        if isinstance(request, BrokerRegistration):
            request = replace(request, boot_id=None)
        return super().decide(request, now_ms=now_ms, base_offset=base_offset)


class _GrantsToAnyProcess(PartitionDecisions):
    def _is_eligible(self, broker_id: BrokerId, broker_epoch: int) -> bool:
        broker = self._cluster.brokers.get(broker_id)
        return broker is not None and not broker.fenced


class _GrantsToTheFenced(PartitionDecisions):
    def _is_eligible(self, broker_id: BrokerId, broker_epoch: int) -> bool:
        return True


class _GrantsOldProposals(PartitionDecisions):
    def _refusal(
        self, partition: PartitionImage, broker_id: BrokerId, proposal: IsrProposal
    ) -> ErrorCode:
        proposal = replace(proposal, partition_epoch=partition.partition_epoch)
        return super()._refusal(partition, broker_id, proposal)


class _LeavesRefusedProposalsValid(PartitionDecisions):
    def decide_alter(self, request: AlterPartitions) -> Decision[IsrResults]:
        decision = super().decide_alter(request)
        real = tuple(r for r in decision.records if r.isr is not None or r.leader is not None)  # type: ignore[union-attr]  # PartitionChange
        return replace(decision, records=real)


class _KeepsTheElrWhileItCommits(PartitionDecisions):
    def _min_isr(self, located: Located, leader_id: BrokerId) -> int:
        return len(located.partition.replicas) + 1


class _ElectsWhoeverLives(PartitionDecisions):
    def _change(
        self,
        located: Located,
        target_isr: tuple[BrokerId, ...],
        active: Set[BrokerId],
        barred: Set[BrokerId] = frozenset(),
        *,
        prefers_first: bool = False,
    ) -> PartitionChange | None:
        partition = located.partition
        alive = [replica for replica in partition.replicas if replica in active]
        if not {*target_isr} & {*alive} and not {*partition.elr} & {*alive} and alive:
            target_isr = (alive[0],)
        return super()._change(located, target_isr, active, barred, prefers_first=prefers_first)


def _deciding(broken: type[PartitionDecisions]) -> BrokenRules:
    class Mutant(Controller):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]  # handed on
            self._partitions = broken(self.cluster)  # type: ignore[misc]  # it replaces the rule

    return BrokenRules(controller=Mutant)


_PARTITION: Final[tuple[tuple[str, PartitionRules, str], ...]] = (
    (
        "commits_alone",
        PartitionRules(high_watermark=CommitsAtItsOwnLogEnd),
        "a leader commits what only its own log holds",
    ),
    (
        "counts_only_the_granted_isr",
        PartitionRules(high_watermark=CountsOnlyTheGrantedIsr),
        "a leader does not count members that it has proposed (KIP-497)",
    ),
    (
        "lets_laggards_join",
        PartitionRules(isr=LetsLaggardsJoin),
        "a follower joins the ISR although it lacks committed records",
    ),
    (
        "counts_diverging_followers",
        PartitionRules(leadership=CountsDivergingFollowers),
        "a leader counts a follower by its offset, whatever its log holds",
    ),
    (
        "ignores_divergence",
        PartitionRules(serving=IgnoresDivergence),
        "a leader lets any log follow its own (KIP-595)",
    ),
    (
        "truncates_to_its_high_watermark",
        PartitionRules(
            followership=TruncatesToItsHighWatermark, role_changes=_TruncatesBeforeItFollows
        ),
        "a follower cuts its log at its own high watermark, as before KIP-101",
    ),
    (
        "ignores_broker_epochs",
        PartitionRules(isr=IgnoresBrokerEpochs, leadership=CountsEchoesOfOlderProcesses),
        "a leader takes a restarted follower for the process before (KIP-903)",
    ),
    (
        "takes_late_answers",
        PartitionRules(followership=_TakesLateAnswers),
        "a follower appends an answer to a fetch before its truncation (KAFKA-13207)",
    ),
    (
        "shrinks_before_it_is_granted",
        PartitionRules(isr=_ShrinksBeforeItIsGranted),
        "a leader commits without the members that it wants to leave the ISR",
    ),
    (
        "takes_any_refusal_for_final",
        PartitionRules(leadership=_TakesAnyRefusalForFinal),
        "a leader takes a proposal without an answer for one that was refused",
    ),
)
_CONTROLLER: Final[tuple[tuple[str, BrokenRules, str], ...]] = (
    (
        "ignores_power_loss",
        BrokenRules(controller=_IgnoresPowerLoss),
        "a broker that lost unflushed records stays eligible (decision 18)",
    ),
    (
        "grants_to_any_process",
        _deciding(_GrantsToAnyProcess),
        "an ISR is granted to a process that has been replaced (KIP-903)",
    ),
    (
        "grants_to_the_fenced",
        _deciding(_GrantsToTheFenced),
        "an ISR is granted with a fenced member (KAFKA-14617)",
    ),
    (
        "grants_old_proposals",
        _deciding(_GrantsOldProposals),
        "an ISR is granted that was proposed on an older view (KIP-497)",
    ),
    (
        "leaves_refused_proposals_valid",
        _deciding(_LeavesRefusedProposalsValid),
        "a copy of a refused proposal may be granted later (decision 16)",
    ),
    (
        "keeps_the_elr_while_it_commits",
        _deciding(_KeepsTheElrWhileItCommits),
        "a member that left stays eligible although the ISR goes on to commit (KIP-966)",
    ),
    (
        "elects_whoever_lives",
        _deciding(_ElectsWhoeverLives),
        "a replica outside ISR and ELR is elected when no member is alive",
    ),
)
BROKEN_RULES: Final[Mapping[str, BrokenRules]] = {
    **{
        name: BrokenRules(partition=replace(rules, invariants=Unchecked))
        for name, rules, _ in _PARTITION
    },
    **{name: rules for name, rules, _ in _CONTROLLER},
}
PARTITION_MUTANTS: Final[Mapping[str, str]] = {name: rule for name, _, rule in _PARTITION}
CONTROLLER_MUTANTS: Final[Mapping[str, str]] = {name: rule for name, _, rule in _CONTROLLER}
"""Name -> the rule that it breaks."""

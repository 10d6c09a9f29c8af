"""Controllers with one broken rule each: registrations, fencing, ISRs, elections, reassignments."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.followership import Followership
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.log_loss import NO_LOSS, Losses
from quorumlog.metadata_quorum.controller.partition_changes import (
    Assignment,
    Located,
    PartitionChanges,
)
from quorumlog.metadata_quorum.controller.partitions import Departure, PartitionDecisions
from quorumlog.metadata_quorum.controller.reassignment import ReassignmentDecisions
from quorumlog.metadata_quorum.controller.resumptions import Resumptions
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.controller_client import BrokerRegistration, IsrProposal
from quorumlog.metadata_quorum.controller_requests import (
    AlterPartitions,
    ControllerRequest,
    IsrResults,
)
from quorumlog.metadata_quorum.image import BrokerImage, PartitionImage
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId

# ruff: noqa: ARG002 - a mutant has the signature of the replaced method

CONTROLLERS: Final = Mutants("controller")
ELECTIONS: Final = Mutants("controller")
"""Whole nodes alone can run them."""


@CONTROLLERS.breaks("a broker that lost unflushed records stays eligible (decision 12)")
class _IgnoresPowerLoss(Controller):
    def decide(self, request: ControllerRequest, **at: Any) -> Decision[object]:
        if isinstance(request, BrokerRegistration):
            request = replace(request, boot_id=None)
        return super().decide(request, **at)


@CONTROLLERS.breaks("a broker that lost unflushed records resumes its leaderships (decision 13)")
class _ResumesWithoutItsRecords(Resumptions):
    def may_resume(self, broker: BrokerImage | None, request: BrokerRegistration, *_: Any) -> bool:
        boot_id = None if broker is None else broker.boot_id
        return super().may_resume(broker, replace(request, boot_id=boot_id), NO_LOSS)


@CONTROLLERS.breaks("a new process leads in a leader epoch of the former process (decision 13)")
class _ResumesInOldEpochs(Resumptions):
    def _renewed(self, request: BrokerRegistration) -> tuple[PartitionChange, ...]:
        return ()


@CONTROLLERS.breaks("the first slice of a decision already fences the broker")
class _FencesBeforeTheLastSlice(Slices):
    at_once = 1

    def departure(self, broker_id: BrokerId, losses: Losses = NO_LOSS) -> Departure:
        return super().departure(broker_id, losses)._replace(is_whole=True)


@CONTROLLERS.breaks("an ISR is granted with a replaced process (KIP-903)")
class _GrantsToAnyProcess(PartitionDecisions):
    def _is_eligible(self, partition: PartitionImage, broker_id: BrokerId, *known: Any) -> bool:
        broker = self._cluster.brokers.get(broker_id)
        return broker is not None and not broker.fenced


@CONTROLLERS.breaks("an ISR is granted with a fenced member (KAFKA-14617)")
class _GrantsToTheFenced(PartitionDecisions):
    def _is_eligible(self, *known: Any) -> bool:
        return True


@CONTROLLERS.breaks("an ISR proposal from an older partition epoch is granted (KIP-497)")
class _GrantsOldProposals(PartitionDecisions):
    def _refusal(
        self, partition: PartitionImage, broker_id: BrokerId, proposal: IsrProposal
    ) -> ErrorCode:
        proposal = replace(proposal, partition_epoch=partition.partition_epoch)
        return super()._refusal(partition, broker_id, proposal)


@CONTROLLERS.breaks("a copy of a refused proposal may be granted later (decision 10)")
class _LeavesRefusedProposalsValid(PartitionDecisions):
    def decide_alter(self, request: AlterPartitions) -> Decision[IsrResults]:
        decision = super().decide_alter(request)
        real = tuple(r for r in decision.records if r.isr is not None or r.leader is not None)  # type: ignore[union-attr]  # PartitionChange
        return replace(decision, records=real)


@CONTROLLERS.breaks(
    "a removed ISR member stays eligible although the ISR commits further records (KIP-966)"
)
class _KeepsTheElrWhileItCommits(PartitionChanges):
    def min_isr(self, located: Located, leader_id: BrokerId, replicas: int) -> int:
        return replicas + 1


@CONTROLLERS.breaks("a replica outside ISR and ELR is elected when no member is alive")
class _ElectsAnyThatLives(PartitionChanges):
    def change(self, located: Located, *known: Any, **options: Any) -> PartitionChange | None:
        target_isr, active, *others = known
        partition = located.partition
        alive = [replica for replica in partition.replicas if replica in active]
        if not {*target_isr} & {*alive} and not {*partition.elr} & {*alive} and alive:
            target_isr = (alive[0],)
        return super().change(located, target_isr, active, *others, **options)


@CONTROLLERS.breaks("a reassignment ends before all replicas are in sync (KAFKA-15665)")
class _EndsBeforeAllAreInSync(PartitionChanges):
    def completed(self, assignment: Assignment, isr: tuple[BrokerId, ...]) -> Assignment:
        is_begun = bool({*assignment.adding} & {*isr})
        return Assignment(assignment.target) if is_begun else super().completed(assignment, isr)


@CONTROLLERS.breaks("a reassignment removes the leader without an election")
class _DropsTheLeaderWithoutAnElection(PartitionChanges):
    def change(self, located: Located, *others: Any, **options: Any) -> PartitionChange | None:
        change = super().change(located, *others, **options)
        if change is None or change.replicas is None:
            return change
        leads_anew = change.leader not in {None, located.partition.leader_id}
        return replace(change, leader=NO_LEADER) if leads_anew else change


@CONTROLLERS.breaks("a cancelled reassignment keeps the added replicas")
class _LeavesWhatWasAdded(ReassignmentDecisions):
    def without_reassignment(self, partition: PartitionImage) -> Assignment:
        return Assignment(partition.replicas)


@CONTROLLERS.breaks("a reassignment drops the old replicas before the new ones are in sync")
class _DropsTheOldReplicasAtOnce(ReassignmentDecisions):
    def towards(self, partition: PartitionImage, target: tuple[BrokerId, ...]) -> Assignment:
        return Assignment(target, super().towards(partition, target).adding)


# --- unclean elections ---


@CONTROLLERS.breaks("a leader is elected uncleanly although the topic does not allow it")
class _ElectsWithoutLeave(PartitionChanges):
    def may_be_unclean(self, topic_name: str) -> bool:
        return True


@CONTROLLERS.breaks("an unclean election ignores live eligible replicas")
class _PassesOverTheEligible(PartitionChanges):
    def elected(self, assignment: Assignment, pool: object, *active: Any) -> BrokerId:
        return super().elected(assignment, assignment.replicas, *active)


@CONTROLLERS.breaks("an unclean election leaves other replicas than the new leader in the ISR")
class _KeepsTheIsrOfTheLostHistory(PartitionChanges):
    def change(self, located: Located, *known: Any, **options: Any) -> PartitionChange | None:
        change = super().change(located, *known, **options)
        if change is None or change.leader is None or not change.is_recovering:
            return change
        alive = [one for one in located.partition.replicas if one in known[1]]
        return replace(change, isr=(change.leader, *(o for o in alive if o != change.leader)))


@CONTROLLERS.breaks("a follower keeps records that an unclean election has discarded")
class _KeepsWhatWasCommitted(Followership):
    def leader_diverged(self, event: events.LeaderDiverged) -> Sequence[effects.Effect]:
        return [
            effects.TruncateTo(offset=max(effect.offset, self._state.high_watermark))
            if isinstance(effect, effects.TruncateTo)
            else effect
            for effect in super().leader_diverged(event)
        ]


# --- elections that no simulated world covers ---


"""Controllers with a broken rule that no simulated world covers."""


@ELECTIONS.breaks("a controller elects a replica outside the ISR although a member is alive")
class _ElectsOutsideTheIsr(PartitionChanges):
    def change(self, located: Located, *known: Any, **options: Any) -> PartitionChange | None:
        target_isr, active, *others = known
        partition = located.partition
        if partition.leader_id not in target_isr:
            outside = [
                replica
                for replica in partition.replicas
                if replica in active and replica not in {*target_isr, partition.leader_id}
            ]
            if outside:
                return PartitionChange(
                    topic_id=located.topic_id,
                    partition_id=located.index,
                    isr=(outside[0],),
                    leader=outside[0],
                    elr=None,
                )
        return super().change(located, target_isr, active, *others, **options)


@ELECTIONS.breaks(
    "a broker with an ended process leaves the ISRs before an unheard broker (decision 6)"
)
class _LetsTheDeadLeaveFirst(Controller):
    def _may_leave(self, broker_id: BrokerId, now_ms: int) -> bool:
        return True

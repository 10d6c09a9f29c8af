"""Mutants of the consumer group rules, one broken rule in each class."""

from collections.abc import Iterable, Set
from dataclasses import replace
from functools import partial
from typing import Any, Final

from quorumlog.broker.groups.core.consumer.coordinator import NEVER_MS, ConsumerGroupCoordinator
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.heartbeats import Admitted, Heartbeats
from quorumlog.broker.groups.core.consumer.member_deadlines import MemberDeadlines
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, Partitions
from quorumlog.broker.groups.core.consumer.reconciliation import CurrentAssignment
from quorumlog.broker.groups.core.consumer.records import RecordKind
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, HeartbeatResult
from quorumlog.broker.groups.core.consumer.targets import TargetJob, Targets
from quorumlog.broker.groups.core.consumer.writes import GroupWrites, PendingAnswer
from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken

CONSUMER_MUTANTS: Final = Mutants(partial(with_broken, GROUP_RULES))


# --- Partitions that move ---


@CONSUMER_MUTANTS.breaks("a heartbeat without owned partitions acknowledges a revocation")
class _SilenceAcknowledges(Heartbeats):
    def reconcile(self, changes: Changes, member_id: str, reported: Partitions | None) -> None:
        super().reconcile(changes, member_id, reported or NO_PARTITIONS)


@CONSUMER_MUTANTS.breaks("a partition is assigned before its owner has acknowledged the revocation")
class _RevokesUnasked(Heartbeats):
    def reconcile(self, changes: Changes, member_id: str, reported: Partitions | None) -> None:
        del reported
        super().reconcile(changes, member_id, NO_PARTITIONS)


@CONSUMER_MUTANTS.breaks("a member is assigned the partitions that it reports")
class _TakesWhatIsReported(Heartbeats):
    def next_assignment(
        self, group: ConsumerGroup, member_id: str, reported: Partitions | None
    ) -> CurrentAssignment:
        current = group.members[member_id].current
        after = super().next_assignment(group, member_id, reported)
        if after == current:
            return after
        reported = reported or NO_PARTITIONS
        assigned_at = dict.fromkeys(reported, after.member_epoch) | {**after.assigned_at}
        return replace(after, assigned=after.assigned | reported, assigned_at=assigned_at)


@CONSUMER_MUTANTS.breaks("a heartbeat with an old member epoch is accepted")
class _BelievesAnyEpoch(Heartbeats):
    def begin(
        self, changes: Changes, now_ms: int, request: ConsumerHeartbeat
    ) -> HeartbeatResult | Admitted:
        member = changes.group.members.get(request.member_id)
        if member is not None and request.member_epoch > 0:
            request = replace(request, member_epoch=member.current.member_epoch)
        return super().begin(changes, now_ms, request)


@CONSUMER_MUTANTS.breaks("a target assignment gives one partition to two members")
class _AssignsToTwo(Targets):
    def job(self, group: ConsumerGroup) -> TargetJob:
        job = super().job(group)

        def assign(members: Any, counts: Any) -> Any:
            target = job.assign(members, counts)
            first, last = min(target), max(target)
            return {**target, first: target[first] | target[last]}

        return replace(job, assign=assign)


@CONSUMER_MUTANTS.breaks("a member whose response was lost does not receive its assignment again")
class _TellsNothingAgain(Heartbeats):
    def _answer(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: ConsumerHeartbeat,
        told: CurrentAssignment | None,
    ) -> HeartbeatResult:
        answer = super()._answer(group, member_id, request, told)
        is_new = told is None or told.assigned != group.members[member_id].current.assigned
        return answer if is_new else replace(answer, assignment=None)


# --- Writes ---


@CONSUMER_MUTANTS.breaks("a heartbeat's response is sent before its records are committed")
class _AnswersBeforeTheCommit(ConsumerGroupCoordinator):
    def _enqueue(self, changes: Changes, answer: PendingAnswer | None) -> None:
        if answer is not None:
            self._reply(answer.request_id, answer.result)
        super()._enqueue(changes, None)


@CONSUMER_MUTANTS.breaks("a failed write is not rolled back")
class _KeepsWhatWasRefused(ConsumerGroupCoordinator):
    def rebuild(self, group_id: str, now_ms: int) -> None:
        if group_id not in self.groups:
            super().rebuild(group_id, now_ms)


@CONSUMER_MUTANTS.breaks("decisions made during a pending write are not written")
class _DropsWhatWaits(ConsumerGroupCoordinator):
    def _write_on(self, group_id: str, writes: GroupWrites) -> None:
        if writes.under_way is not None and writes.waiting:
            writes.waiting[-1].records.clear()
        super()._write_on(group_id, writes)


@CONSUMER_MUTANTS.breaks("the target assignment is not written to the log")
class _WritesNoTarget(Targets):
    def write(self, changes: Changes, job: TargetJob, target: Any) -> None:
        super().write(changes, job, target)
        changes.records[:] = [
            record
            for record in changes.records
            if record.subject.kind is not RecordKind.TARGET_MEMBER
        ]


# --- Time ---


@CONSUMER_MUTANTS.breaks("a new coordinator gives members no session in which to find it")
class _GivesNoSession(ConsumerGroupCoordinator):
    def rebuild(self, group_id: str, now_ms: int) -> None:
        super().rebuild(group_id, now_ms - self._settings.session_timeout_ms + 1)


@CONSUMER_MUTANTS.breaks("a member without heartbeats is never removed")
class _EndsNoSession(ConsumerGroupCoordinator):
    @property
    def next_deadline_ms(self) -> int:
        return NEVER_MS


@CONSUMER_MUTANTS.breaks("a member that never revokes its partitions is never removed")
class _EndsNoRebalance(MemberDeadlines):
    def begin_rebalance(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        pass


@CONSUMER_MUTANTS.breaks("a member is removed before its rebalance timeout is over")
class _EndsRebalancesAtOnce(MemberDeadlines):
    def begin_rebalance(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        timeout_ms = group.members[member_id].metadata.rebalance_timeout_ms
        super().begin_rebalance(group, member_id, now_ms - timeout_ms + 10)


# --- Members and topics ---


@CONSUMER_MUTANTS.breaks("a group ignores changed topics")
class _LooksAtNoTopics(ConsumerGroupCoordinator):
    def _handle_topics_changed(self, names: Set[str]) -> None:
        pass


@CONSUMER_MUTANTS.breaks("the new partitions of a grown topic are not assigned")
class _SeesNoGrowth(Membership):
    def _metadata_hash(self, names: Set[str]) -> int:
        return sum(map(len, names & self._topics.by_name.keys()))


@CONSUMER_MUTANTS.breaks("the partitions of a leaving member get no new owner")
class _LeavesBeginNoEpoch(Membership):
    def remove(self, changes: Changes, member_ids: Iterable[str], now_ms: int) -> None:
        del now_ms
        for member_id in member_ids:
            self._erase(changes, member_id)


@CONSUMER_MUTANTS.breaks("a static member that leaves temporarily loses its assignment")
class _KeepsNoPlaces(Membership):
    def leave_for_a_while(self, changes: Changes, member: ConsumerMember) -> None:
        self.remove(changes, (member.member_id,), 0)

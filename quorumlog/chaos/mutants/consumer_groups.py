"""Coordinators of consumer groups (KIP-848) with one broken rule each."""

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.groups.core.consumer.classic_members import ClassicMembers
from quorumlog.broker.groups.core.consumer.coordinator import (
    NEVER_MS,
    ConsumerGroupCoordinator,
    GroupWrites,
    PendingAnswer,
)
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.heartbeats import Admitted, Heartbeats
from quorumlog.broker.groups.core.consumer.member_deadlines import MemberDeadlines
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, Partitions
from quorumlog.broker.groups.core.consumer.reconciliation import CurrentAssignment
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    RecordKind,
    TargetMemberValue,
    TargetValue,
)
from quorumlog.broker.groups.core.consumer.requests import (
    ConsumerHeartbeat,
    HeartbeatResult,
    RequestRefused,
)
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.broker.groups.core.consumer.targets import TargetJob, Targets
from quorumlog.broker.groups.core.consumer_groups import ConsumerGroups, Replaced
from quorumlog.broker.groups.core.group import Group, Member
from quorumlog.broker.groups.core.joins import Joins
from quorumlog.broker.groups.core.rebalance import Rebalance
from quorumlog.broker.groups.core.records import LogRecord
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitTransactionalOffsets,
    Heartbeat,
    Join,
    Sync,
    SyncResult,
)
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import replaced

CONSUMER_GROUPS: Final = Mutants("groups")
MIXED_GROUPS: Final = Mutants("groups")
"""Offsets, and classic members in a consumer group."""


# --- Partitions that move ---


@CONSUMER_GROUPS.breaks("a heartbeat without owned partitions acknowledges a revocation")
class _SilenceAcknowledges(Heartbeats):
    def reconcile(self, changes: Changes, member_id: str, reported: Partitions | None) -> None:
        super().reconcile(changes, member_id, reported or NO_PARTITIONS)


@CONSUMER_GROUPS.breaks("a partition is assigned before its owner has acknowledged the revocation")
class _RevokesUnasked(Heartbeats):
    def reconcile(self, changes: Changes, member_id: str, reported: Partitions | None) -> None:
        del reported
        super().reconcile(changes, member_id, NO_PARTITIONS)


@CONSUMER_GROUPS.breaks("a member is assigned the partitions that it reports")
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


@CONSUMER_GROUPS.breaks("a heartbeat with an old member epoch is accepted")
class _BelievesAnyEpoch(Heartbeats):
    def begin(
        self, changes: Changes, now_ms: int, request: ConsumerHeartbeat
    ) -> HeartbeatResult | Admitted:
        member = changes.group.members.get(request.member_id)
        if member is not None and request.member_epoch > 0:
            request = replace(request, member_epoch=member.current.member_epoch)
        return super().begin(changes, now_ms, request)


@CONSUMER_GROUPS.breaks("a target assignment gives one partition to two members")
class _AssignsToTwo(Targets):
    def job(self, group: ConsumerGroup) -> TargetJob:
        job = super().job(group)

        def assign(members: Any, counts: Any) -> Any:
            target = job.assign(members, counts)
            first, last = min(target), max(target)
            return {**target, first: target[first] | target[last]}

        return replace(job, assign=assign)


@CONSUMER_GROUPS.breaks("a member whose response was lost does not receive its assignment again")
class _TellsNothingAgain(Heartbeats):
    def _answer(self, group: ConsumerGroup, member_id: str, *asked: Any) -> HeartbeatResult:
        answer = super()._answer(group, member_id, *asked)
        told: CurrentAssignment | None = asked[-1]
        is_new = told is None or told.assigned != group.members[member_id].current.assigned
        return answer if is_new else replace(answer, assignment=None)


# --- Writes ---


@CONSUMER_GROUPS.breaks("a heartbeat's response is sent before its records are committed")
class _AnswersBeforeTheCommit(ConsumerGroupCoordinator):
    def _enqueue(self, changes: Changes, answer: PendingAnswer | None) -> None:
        if answer is not None:
            self._reply(answer.request_id, answer.result)
        super()._enqueue(changes, None)


@CONSUMER_GROUPS.breaks("a failed write is not rolled back")
class _KeepsWhatWasRefused(ConsumerGroupCoordinator):
    def rebuild(self, group_id: str, now_ms: int) -> None:
        if group_id not in self.groups:
            super().rebuild(group_id, now_ms)


@CONSUMER_GROUPS.breaks("decisions made during a pending write are not written")
class _DropsWhatWaits(ConsumerGroupCoordinator):
    def _write_on(self, group_id: str, writes: GroupWrites) -> None:
        if writes.under_way is not None and writes.waiting:
            writes.waiting[-1].records.clear()
        super()._write_on(group_id, writes)


@CONSUMER_GROUPS.breaks("the target assignment is not written to the log")
class _WritesNoTarget(Targets):
    def write(self, changes: Changes, job: TargetJob, target: Any) -> None:
        super().write(changes, job, target)
        changes.records[:] = [
            record
            for record in changes.records
            if record.subject.kind is not RecordKind.TARGET_MEMBER
        ]


# --- Time ---


@CONSUMER_GROUPS.breaks("a new coordinator gives members no session in which to find it")
class _GivesNoSession(ConsumerGroupCoordinator):
    def rebuild(self, group_id: str, now_ms: int) -> None:
        session_ms = self._settings.group_consumer_session_timeout_ms
        super().rebuild(group_id, now_ms - session_ms + 1)


@CONSUMER_GROUPS.breaks("a member without heartbeats is never removed")
class _EndsNoSession(ConsumerGroupCoordinator):
    @property
    def next_deadline_ms(self) -> int:
        return NEVER_MS


@CONSUMER_GROUPS.breaks("a member that never revokes its partitions is never removed")
class _EndsNoRebalance(MemberDeadlines):
    def begin_rebalance(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        pass


@CONSUMER_GROUPS.breaks("a member is removed before its rebalance timeout is over")
class _EndsRebalancesAtOnce(MemberDeadlines):
    def begin_rebalance(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        timeout_ms = group.members[member_id].metadata.rebalance_timeout_ms
        super().begin_rebalance(group, member_id, now_ms - timeout_ms + 10)


# --- Members and topics ---


@CONSUMER_GROUPS.breaks("a group ignores changed topics")
class _LooksAtNoTopics(ConsumerGroupCoordinator):
    def _handle_topics_changed(self, names: Set[str]) -> None:
        pass


@CONSUMER_GROUPS.breaks("the new partitions of a grown topic are not assigned")
class _SeesNoGrowth(Membership):
    def _metadata_hash(self, names: Set[str]) -> int:
        return sum(map(len, names & self._topics.by_name.keys()))


@CONSUMER_GROUPS.breaks("the partitions of a leaving member get no new owner")
class _LeavesBeginNoEpoch(Membership):
    def remove(self, changes: Changes, member_ids: Iterable[str], now_ms: int) -> None:
        del now_ms
        for member_id in member_ids:
            self._erase(changes, member_id)


@CONSUMER_GROUPS.breaks("a static member that leaves temporarily loses its assignment")
class _KeepsNoPlaces(Membership):
    def leave_for_a_while(self, changes: Changes, member: ConsumerMember) -> None:
        self.remove(changes, (member.member_id,), 0)


# --- Offsets ---


class _AnyCommit(ConsumerGroups):
    refused: frozenset[ErrorCode]

    def commit_refusal(self, request: CommitOffsets) -> ErrorCode | None:
        refusal = super().commit_refusal(request)
        return ErrorCode.NONE if refusal in self.refused else refusal


@MIXED_GROUPS.breaks("a member of a consumer group commits with an old member epoch")
class _TakesCommitsOfAnyEpoch(_AnyCommit):
    refused = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION})


@MIXED_GROUPS.breaks("a removed member of a consumer group commits")
class _TakesCommitsOfTheRemoved(_AnyCommit):
    refused = frozenset({ErrorCode.UNKNOWN_MEMBER_ID})


@MIXED_GROUPS.breaks(
    "a transaction commits offsets for a removed member, or with an old member epoch"
)
class _TakesAnyTransaction(ConsumerGroups):
    def transactional_refusal(self, request: CommitTransactionalOffsets) -> ErrorCode | None:
        refusal = super().transactional_refusal(request)
        return None if refusal is None else ErrorCode.NONE


# --- Classic members ---


@MIXED_GROUPS.breaks("the owned partitions in a classic member's JoinGroup are ignored")
class _IgnoresWhatIsOwned(ClassicMembers):
    def _owned(self, join: Join) -> Partitions:
        super()._owned(join)
        return NO_PARTITIONS


@MIXED_GROUPS.breaks("a classic member never receives REBALANCE_IN_PROGRESS")
class _InvitesNobody(ClassicMembers):
    def heartbeat(self, changes: Changes, now_ms: int, heartbeat: Heartbeat) -> ErrorCode:
        super().heartbeat(changes, now_ms, heartbeat)
        return ErrorCode.NONE


@MIXED_GROUPS.breaks("a classic member's SyncGroup gets no response")
class _AnswersNoSync(ClassicMembers):
    def sync(self, group: ConsumerGroup, sync: Sync) -> SyncResult:
        super().sync(group, sync)
        raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "a mutant")


@MIXED_GROUPS.breaks("a classic member that has synced is removed at its sync deadline")
class _KeepsTheSyncDeadline(MemberDeadlines):
    def note_sync(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        self.begin_session(group, member_id, now_ms)


@MIXED_GROUPS.breaks("a classic static member blocks its successor with the consumer protocol")
class _KeepsTheSuccessorOut(Heartbeats):
    def begin(
        self, changes: Changes, now_ms: int, request: ConsumerHeartbeat
    ) -> HeartbeatResult | Admitted:
        owner = changes.group.members.get(changes.group.static.get(request.instance_id or "", ""))
        is_another = owner is not None and owner.member_id != request.member_id
        if request.member_epoch == 0 and is_another and owner is not None and not owner.is_away:
            raise RequestRefused(ErrorCode.UNRELEASED_INSTANCE_ID, "a mutant")
        return super().begin(changes, now_ms, request)


@MIXED_GROUPS.breaks("a classic group's generation does not wait for static members")
class _WaitsForNoStaticMember(Rebalance):
    def maybe_complete(self, group: Group, now_ms: int) -> None:
        awaited = [one for one in group.members.values() if one.awaiting_join is None]
        is_begun = group.initial_delay_left_ms is None and len(awaited) < len(group.members)
        if is_begun and all(one.group_instance_id is not None for one in awaited):
            self._complete_join(group, now_ms)
        else:
            super().maybe_complete(group, now_ms)


@MIXED_GROUPS.breaks("a static member rejoins with other topics, without a rebalance")
class _AssignsNoNewTopics(Joins):
    def _wants_the_same(self, group: Group, member: Member, join: Join) -> bool:
        del member
        return group.select_protocol(join) == group.protocol_name


@MIXED_GROUPS.breaks("a rejoining static member need not revoke its partitions")
class _WaitsForTheReturned(Joins):
    def _must_give_up(self, group: Group, member: Member) -> bool:
        del group, member
        return False


@MIXED_GROUPS.breaks("a group that changes its protocol writes no tombstones of the old format")
class _KeepsTheFormerForm(ConsumerGroups):
    def _replace(self, group_id: str, records: tuple[LogRecord, ...], replaced: Replaced) -> None:
        kept = tuple(
            record
            for record in records
            if getattr(record, "stored", None) is not None or getattr(record, "value", None)
        )
        super()._replace(group_id, kept or records, replaced)


@MIXED_GROUPS.breaks("an upgrade frees the partitions that a classic member has yet to revoke")
class _FreesTheUnrevoked(ConsumerGroups):
    def _as_consumer_group(self, group: Group) -> tuple[LogRecord, ...]:
        return tuple(map(_stable, super()._as_consumer_group(group)))


def _stable(record: LogRecord) -> LogRecord:
    match record:
        case ConsumerGroupRecord(value=CurrentAssignmentValue() as value):
            stable = replaced(value, state=MemberState.STABLE, partitions_pending_revocation=[])
            return replace(record, value=stable)
        case _:
            return record


@MIXED_GROUPS.breaks("a protocol change loses the members' owned partitions")
class _LosesAssignmentsOnTheWay(ConsumerGroups):
    def _as_consumer_group(self, group: Group) -> tuple[LogRecord, ...]:
        return tuple(map(_emptied, super()._as_consumer_group(group)))


@MIXED_GROUPS.breaks("a protocol change resets the epochs of the group")
class _BeginsEpochsAnew(ConsumerGroups):
    def _as_consumer_group(self, group: Group) -> tuple[LogRecord, ...]:
        return tuple(map(_begun_anew, super()._as_consumer_group(group)))


def _begun_anew(record: LogRecord) -> LogRecord:
    match record:
        case ConsumerGroupRecord(value=GroupValue() as value):
            return replace(record, value=replaced(value, epoch=1))
        case ConsumerGroupRecord(value=TargetValue() as value):
            return replace(record, value=replaced(value, assignment_epoch=1))
        case ConsumerGroupRecord(value=CurrentAssignmentValue() as value):
            epochs = replaced(value, member_epoch=1, previous_member_epoch=1)
            return replace(record, value=epochs)
        case _:
            return record


def _emptied(record: LogRecord) -> LogRecord:
    match record:
        case ConsumerGroupRecord(value=CurrentAssignmentValue() as value):
            return replace(record, value=replaced(value, assigned_partitions=[]))
        case ConsumerGroupRecord(value=TargetMemberValue()):
            return replace(record, value=TargetMemberValue())
        case _:
            return record

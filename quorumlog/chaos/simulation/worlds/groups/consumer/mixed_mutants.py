"""Mutants of the rules of consumer group offsets and of classic members."""

from dataclasses import replace
from functools import partial
from typing import Final

from quorumlog.broker.groups.core.consumer.classic_members import ClassicMembers
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup
from quorumlog.broker.groups.core.consumer.heartbeats import Admitted, Heartbeats
from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, Partitions
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    CurrentAssignmentValue,
    GroupValue,
    TargetMemberValue,
    TargetValue,
)
from quorumlog.broker.groups.core.consumer.requests import (
    ConsumerHeartbeat,
    HeartbeatResult,
    RequestRefused,
)
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.broker.groups.core.consumer_groups import ConsumerGroups, Replaced
from quorumlog.broker.groups.core.group import Group, Member
from quorumlog.broker.groups.core.joining import Joining
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
from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
from quorumlog.wire.codec.error_codes import ErrorCode

MIXED_MUTANTS: Final = Mutants(partial(with_broken, GROUP_RULES))


# --- Offsets ---


class _AnyCommit(ConsumerGroups):
    refused: frozenset[ErrorCode]

    def commit_refusal(self, request: CommitOffsets) -> ErrorCode | None:
        refusal = super().commit_refusal(request)
        return ErrorCode.NONE if refusal in self.refused else refusal


@MIXED_MUTANTS.breaks("a member of a consumer group commits with an old member epoch")
class _TakesCommitsOfAnyEpoch(_AnyCommit):
    refused = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION})


@MIXED_MUTANTS.breaks("a removed member of a consumer group commits")
class _TakesCommitsOfTheRemoved(_AnyCommit):
    refused = frozenset({ErrorCode.UNKNOWN_MEMBER_ID})


@MIXED_MUTANTS.breaks(
    "a transaction commits offsets for a removed member, or with an old member epoch"
)
class _TakesAnyTransaction(ConsumerGroups):
    def transactional_refusal(self, request: CommitTransactionalOffsets) -> ErrorCode | None:
        refusal = super().transactional_refusal(request)
        return None if refusal is None else ErrorCode.NONE


# --- Classic members ---


@MIXED_MUTANTS.breaks("the owned partitions in a classic member's JoinGroup are ignored")
class _IgnoresWhatIsOwned(ClassicMembers):
    def _owned(self, join: Join) -> Partitions:
        super()._owned(join)
        return NO_PARTITIONS


@MIXED_MUTANTS.breaks("a classic member never receives REBALANCE_IN_PROGRESS")
class _InvitesNobody(ClassicMembers):
    def heartbeat(self, changes: Changes, now_ms: int, heartbeat: Heartbeat) -> ErrorCode:
        super().heartbeat(changes, now_ms, heartbeat)
        return ErrorCode.NONE


@MIXED_MUTANTS.breaks("a classic member's SyncGroup gets no response")
class _AnswersNoSync(ClassicMembers):
    def sync(self, group: ConsumerGroup, sync: Sync) -> SyncResult:
        super().sync(group, sync)
        raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS, "a mutant")


@MIXED_MUTANTS.breaks("a classic static member blocks its successor with the consumer protocol")
class _KeepsTheSuccessorOut(Heartbeats):
    def begin(
        self, changes: Changes, now_ms: int, request: ConsumerHeartbeat
    ) -> HeartbeatResult | Admitted:
        owner = changes.group.members.get(changes.group.static.get(request.instance_id or "", ""))
        is_another = owner is not None and owner.member_id != request.member_id
        if request.member_epoch == 0 and is_another and owner is not None and not owner.is_away:
            raise RequestRefused(ErrorCode.UNRELEASED_INSTANCE_ID, "a mutant")
        return super().begin(changes, now_ms, request)


@MIXED_MUTANTS.breaks("a classic group's generation does not wait for static members")
class _WaitsForNoStaticMember(Rebalance):
    def maybe_complete(self, group: Group, now_ms: int) -> None:
        awaited = [one for one in group.members.values() if one.awaiting_join is None]
        is_begun = group.initial_delay_left_ms is None and len(awaited) < len(group.members)
        if is_begun and all(one.group_instance_id is not None for one in awaited):
            self._complete_join(group, now_ms)
        else:
            super().maybe_complete(group, now_ms)


@MIXED_MUTANTS.breaks("a static member rejoins with other topics, without a rebalance")
class _AssignsNoNewTopics(Joining):
    def _wants_the_same(self, group: Group, member: Member, join: Join) -> bool:
        del member
        return group.select_protocol(join) == group.protocol_name


@MIXED_MUTANTS.breaks("a rejoining static member need not revoke its partitions")
class _WaitsForTheReturned(Joining):
    def _must_give_up(self, group: Group, member: Member) -> bool:
        del group, member
        return False


@MIXED_MUTANTS.breaks("a group that changes its protocol writes no tombstones of the old format")
class _KeepsTheFormerForm(ConsumerGroups):
    def _replace(self, group_id: str, records: tuple[LogRecord, ...], replaced: Replaced) -> None:
        kept = tuple(
            record
            for record in records
            if getattr(record, "stored", None) is not None or getattr(record, "value", None)
        )
        super()._replace(group_id, kept or records, replaced)


@MIXED_MUTANTS.breaks("an upgrade frees the partitions that a classic member has yet to revoke")
class _FreesTheUnrevoked(ConsumerGroups):
    def _as_consumer_group(self, group: Group) -> tuple[LogRecord, ...]:
        return tuple(map(_stable, super()._as_consumer_group(group)))


def _stable(record: LogRecord) -> LogRecord:
    match record:
        case ConsumerGroupRecord(value=CurrentAssignmentValue() as value):
            stable = replace(value, state=MemberState.STABLE, partitions_pending_revocation=[])
            return replace(record, value=stable)
        case _:
            return record


@MIXED_MUTANTS.breaks("a protocol change loses the members' owned partitions")
class _LosesAssignmentsOnTheWay(ConsumerGroups):
    def _as_consumer_group(self, group: Group) -> tuple[LogRecord, ...]:
        return tuple(map(_emptied, super()._as_consumer_group(group)))


@MIXED_MUTANTS.breaks("a protocol change resets the epochs of the group")
class _BeginsEpochsAnew(ConsumerGroups):
    def _as_consumer_group(self, group: Group) -> tuple[LogRecord, ...]:
        return tuple(map(_begun_anew, super()._as_consumer_group(group)))


def _begun_anew(record: LogRecord) -> LogRecord:
    match record:
        case ConsumerGroupRecord(value=GroupValue() as value):
            return replace(record, value=replace(value, epoch=1))
        case ConsumerGroupRecord(value=TargetValue() as value):
            return replace(record, value=replace(value, assignment_epoch=1))
        case ConsumerGroupRecord(value=CurrentAssignmentValue() as value):
            epochs = replace(value, member_epoch=1, previous_member_epoch=1)
            return replace(record, value=epochs)
        case _:
            return record


def _emptied(record: LogRecord) -> LogRecord:
    match record:
        case ConsumerGroupRecord(value=CurrentAssignmentValue() as value):
            return replace(record, value=replace(value, assigned_partitions=[]))
        case ConsumerGroupRecord(value=TargetMemberValue()):
            return replace(record, value=TargetMemberValue())
        case _:
            return record

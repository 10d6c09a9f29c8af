"""The classic group protocol: members, generations, assignments.

The leader of a generation assigns, the assignment is committed, then every member gets its part:
no member acts on an assignment that could be lost (KAFKA-13614). The protocol refuses unknown
members, past generations, and replaced static members.
Sources: KIP-62 (sessions), KIP-345 (static members); joins.py, rebalance.py.
"""

from quorumlog.broker.groups.core.group import Group, GroupState, Member
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.rebalance import Rebalance
from quorumlog.broker.groups.core.records import GroupRecord
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    Heartbeat,
    Leave,
    LeaveResult,
    LeavingMember,
    Sync,
    SyncResult,
)
from quorumlog.wire.codec.error_codes import ErrorCode


class ClassicProtocol:
    """The classic protocol. Its only state is the outbox; each method gets the group to change."""

    def __init__(self, outbox: GroupOutbox, rebalance: Rebalance) -> None:
        self._outbox, self._rebalance = outbox, rebalance

    def handle_sync(self, group: Group, now_ms: int, request_id: int, sync: Sync) -> None:
        """Write the leader's assignment; answer each member with its part once it is committed."""
        error_code = self._sync_refusal(group, sync)
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, sync.refuse(error_code))
            return
        member = group.members[sync.member_id]
        group.pending_sync.discard(sync.member_id)
        if group.state is GroupState.STABLE:
            member.touch(now_ms)
            self._outbox.reply(request_id, self._synced(group, member))
            return
        self._rebalance.supersede_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.awaiting_sync = request_id
        if sync.member_id == group.leader and group.storing_generation is None:
            assigned = {key: sync.assignments.get(key, b"") for key in group.members}
            self._store_assignment(group, now_ms, assigned)

    def _sync_refusal(self, group: Group, sync: Sync) -> ErrorCode:
        error_code = self._generation_refusal(group, sync)
        if error_code is not ErrorCode.NONE:
            return error_code
        if sync.protocol_type not in {None, group.protocol_type}:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if sync.protocol_name not in {None, group.protocol_name}:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _generation_refusal(
        self, group: Group, request: Sync | Heartbeat | CommitOffsets
    ) -> ErrorCode:
        error_code = group.refusal(request.member_id, request.group_instance_id)
        if error_code is ErrorCode.NONE and request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error_code

    def _store_assignment(self, group: Group, now_ms: int, assigned: dict[str, bytes]) -> None:
        generation_id = group.storing_generation = group.generation_id

        def done(now_ms: int, error_code: ErrorCode) -> None:
            if group.storing_generation != generation_id:
                return  # a rebalance began meanwhile and answered the waiting members
            group.storing_generation = None
            if error_code is not ErrorCode.NONE:
                for member in group.members.values():
                    self._rebalance.supersede_sync(member, error_code)
                self._rebalance.members_changed(group, now_ms)
                return
            group.transition(GroupState.STABLE, now_ms)
            for member in group.members.values():
                member.assignment = assigned[member.member_id]
                if member.awaiting_sync is not None:
                    self._outbox.reply(member.awaiting_sync, self._synced(group, member))
                    member.awaiting_sync = None
                    member.touch(now_ms)

        stored = group.to_stored(assigned, now_ms)
        self._outbox.append((GroupRecord(group_id=group.group_id, stored=stored),), done)

    def _synced(self, group: Group, member: Member) -> SyncResult:
        return SyncResult(
            error_code=ErrorCode.NONE,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            assignment=member.assignment,
        )

    def handle_heartbeat(
        self, group: Group, now_ms: int, request_id: int, heartbeat: Heartbeat
    ) -> None:
        """Extend the session; answer REBALANCE_IN_PROGRESS if the member must join again."""
        error_code = self._generation_refusal(group, heartbeat)
        if error_code is ErrorCode.NONE:
            group.members[heartbeat.member_id].touch(now_ms)
            if group.state is GroupState.PREPARING_REBALANCE:
                error_code = ErrorCode.REBALANCE_IN_PROGRESS
        self._outbox.reply(request_id, error_code)

    def commit_refusal(self, group: Group, now_ms: int, commit: CommitOffsets) -> ErrorCode:
        """Return why a member may not commit offsets now, or NONE; extend its session."""
        error_code = self._generation_refusal(group, commit)
        if error_code is ErrorCode.NONE:
            group.members[commit.member_id].touch(now_ms)
            if group.state is GroupState.COMPLETING_REBALANCE:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return error_code

    def interrupt(self, group: Group, now_ms: int) -> None:
        """Require every member to join again; answer waiting joins and syncs."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            self._rebalance.prepare(group, now_ms)
        for member in group.members.values():
            if member.awaiting_join is not None:
                member.is_new = False
                member.touch(now_ms)
            self._rebalance.supersede_join(member, ErrorCode.REBALANCE_IN_PROGRESS)

    def handle_leave(self, group: Group | None, now_ms: int, request_id: int, leave: Leave) -> None:
        """Remove members at once, one outcome each; the others rebalance."""
        if group is None:
            unknown = (ErrorCode.UNKNOWN_MEMBER_ID,) * len(leave.members)
            self._outbox.reply(request_id, LeaveResult(error_code=ErrorCode.NONE, members=unknown))
            return
        size = len(group.members)
        outcomes = tuple(self._leave(group, member) for member in leave.members)
        self._outbox.reply(request_id, LeaveResult(error_code=ErrorCode.NONE, members=outcomes))
        self._after_removals(group, now_ms, size)

    def _leave(self, group: Group, leaving: LeavingMember) -> ErrorCode:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if instance_id is not None and not member_id:  # an administrator removes the instance
            member_id = group.static.get(instance_id, "")
        if instance_id is None and group.pending.pop(member_id, None) is not None:
            return ErrorCode.NONE
        error_code = group.refusal(member_id, instance_id)
        if error_code is ErrorCode.NONE:
            self._remove(group, member_id)
        return error_code

    def _remove(self, group: Group, member_id: str) -> None:
        member = group.members[member_id]
        self._rebalance.supersede_join(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._rebalance.supersede_sync(member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member_id)

    def _after_removals(self, group: Group, now_ms: int, size_before: int) -> None:
        if len(group.members) < size_before:
            self._rebalance.members_changed(group, now_ms)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._rebalance.maybe_complete(group, now_ms)  # perhaps it waited for a pending member

    def handle_deadlines(self, group: Group, now_ms: int) -> None:
        """Remove lapsed member ids and overdue members; end an overdue rebalance."""
        lapsed = [member_id for member_id, end_ms in group.pending.items() if now_ms >= end_ms]
        for member_id in lapsed:
            del group.pending[member_id]
        size = len(group.members)
        for member in [*group.members.values()]:
            if member.is_expired(now_ms) or self._has_missed_sync(group, member, now_ms):
                self._remove(group, member.member_id)
        self._after_removals(group, now_ms, size)

    def _has_missed_sync(self, group: Group, member: Member, now_ms: int) -> bool:
        deadline_ms = group.sync_deadline_ms
        is_over = deadline_ms is not None and now_ms >= deadline_ms
        return is_over and member.member_id in group.pending_sync

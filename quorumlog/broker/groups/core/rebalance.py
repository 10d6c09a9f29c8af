"""A rebalance: every member joins again; the members that joined are the next generation.

Sources: KIP-62, KIP-134 (a new group waits a little for more members), KIP-345.
"""

from quorumlog.broker.groups.core.group import Group, GroupState, Member
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.records import GroupRecord
from quorumlog.broker.groups.core.requests import JoinResult, SyncResult
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode


class Rebalance:
    """Runs rebalances. Its only state is the outbox; each method gets the group to change."""

    def __init__(self, settings: BrokerSettings, outbox: GroupOutbox) -> None:
        self._settings, self._outbox = settings, outbox

    def members_changed(self, group: Group, now_ms: int) -> None:
        """Start a rebalance, or complete the one under way if every member has joined."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            self.prepare(group, now_ms)
        self.maybe_complete(group, now_ms)

    def prepare(self, group: Group, now_ms: int) -> None:
        """Start a rebalance: members that wait for an assignment must join again."""
        for member in group.members.values():
            if member.awaiting_sync is not None:
                member.touch(now_ms)
            self.supersede_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        group.sync_deadline_ms = group.storing_generation = None
        patience_ms = group.max_rebalance_timeout_ms()
        if group.state is GroupState.EMPTY:  # more members are likely to follow the first
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            group.initial_delay_left_ms = max(patience_ms - delay_ms, 0)
            group.joined_during_delay = False
            group.rebalance_deadline_ms = now_ms + delay_ms
        else:
            group.initial_delay_left_ms = None
            group.rebalance_deadline_ms = now_ms + patience_ms
        group.transition(GroupState.PREPARING_REBALANCE, now_ms)

    def maybe_complete(self, group: Group, now_ms: int) -> None:
        """End the rebalance if every member has joined, or at its deadline."""
        deadline_ms = group.rebalance_deadline_ms
        is_over = deadline_ms is not None and now_ms >= deadline_ms
        if group.initial_delay_left_ms is None:
            if is_over or group.has_all_joined():
                self._complete_join(group, now_ms)
        elif is_over and group.joined_during_delay and group.initial_delay_left_ms > 0:
            delay_ms = self._settings.group_initial_rebalance_delay_ms
            group.rebalance_deadline_ms = now_ms + min(delay_ms, group.initial_delay_left_ms)
            group.initial_delay_left_ms = max(group.initial_delay_left_ms - delay_ms, 0)
            group.joined_during_delay = False
        elif is_over:
            self._complete_join(group, now_ms)

    def _complete_join(self, group: Group, now_ms: int) -> None:
        """Start the next generation with the members that joined; absent static members stay."""
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                group.remove(member.member_id)
        joined = [member for member in group.members.values() if member.awaiting_join is not None]
        if group.members and not joined:
            # Only absent static members are left: wait for their joins, or the ends of sessions.
            group.rebalance_deadline_ms = now_ms + group.max_rebalance_timeout_ms()
            group.initial_delay_left_ms = None
            return
        group.rebalance_deadline_ms = group.initial_delay_left_ms = None
        group.generation_id += 1
        if not joined:
            self._become_empty(group, now_ms)
            return
        if group.members[group.leader or ""].awaiting_join is None:
            group.leader = joined[0].member_id
        group.protocol_name = group.select_protocol()
        group.transition(GroupState.COMPLETING_REBALANCE, now_ms)
        group.pending_sync = set(group.members)
        group.sync_deadline_ms = now_ms + group.max_rebalance_timeout_ms()
        for member in joined:
            self._answer_join(group, now_ms, member)

    def _become_empty(self, group: Group, now_ms: int) -> None:
        group.protocol_name = group.leader = None
        group.transition(GroupState.EMPTY, now_ms)
        stored = group.to_stored({}, now_ms)
        record = GroupRecord(group_id=group.group_id, stored=stored)
        # No response waits for it. If it is lost, the next coordinator expires the members.
        self._outbox.append((record,), lambda _now_ms, _error_code: None)

    def _answer_join(self, group: Group, now_ms: int, member: Member) -> None:
        require(member.awaiting_join is not None, "a join is answered once")
        self._outbox.reply(member.awaiting_join or 0, self.joined(group, member))
        member.awaiting_join, member.is_new = None, False
        member.touch(now_ms)

    def joined(
        self, group: Group, member: Member, leader: str | None = None, *, skips: bool = False
    ) -> JoinResult:
        """Return the response to this member's join; `leader` overrides the group's leader."""
        leads = member.member_id == group.leader and leader is None
        return JoinResult(
            error_code=ErrorCode.NONE,
            member_id=member.member_id,
            generation_id=group.generation_id,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name,
            leader=leader or group.leader or "",
            skip_assignment=leads and skips,
            members=group.joined_members() if leads else (),
        )

    def supersede_join(self, member: Member, error_code: ErrorCode) -> None:
        """Answer the member's waiting join, if any, with an error."""
        if member.awaiting_join is not None:
            result = JoinResult(error_code=error_code, member_id=member.member_id)
            self._outbox.reply(member.awaiting_join, result)
            member.awaiting_join = None

    def supersede_sync(self, member: Member, error_code: ErrorCode) -> None:
        """Answer the member's waiting sync, if any, with an error."""
        if member.awaiting_sync is not None:
            self._outbox.reply(member.awaiting_sync, SyncResult(error_code=error_code))
            member.awaiting_sync = None

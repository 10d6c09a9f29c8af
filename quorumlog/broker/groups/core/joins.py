"""Joins: which members a group admits, and when a join starts a rebalance.

A join is refused if its member id is unknown, its static member was replaced, or the other members
support none of its protocols. Sources: KIP-345 (static members), KIP-394 (a member joins with an
assigned id), KIP-814.
"""

from typing import Final

from quorumlog.broker.groups.core.group import Group, GroupState, Member
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.member_messages import CONSUMER, subscribed_topics, unrevoked
from quorumlog.broker.groups.core.rebalance import Rebalance
from quorumlog.broker.groups.core.records import NAME_BYTES_MAX, GroupRecord
from quorumlog.broker.groups.core.requests import Join, JoinResult
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import replaced

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000  # the longest wait of a new member's first join


class Joins:
    """Handles joins. Its only state is the outbox; each method gets the group to change."""

    def __init__(self, settings: BrokerSettings, outbox: GroupOutbox, rebalance: Rebalance) -> None:
        self._settings, self._outbox, self._rebalance = settings, outbox, rebalance

    def field_refusal(self, join: Join) -> ErrorCode:
        """Return why a join is invalid in every group, or NONE."""
        shortest_ms = self._settings.group_min_session_timeout_ms
        longest_ms = self._settings.group_max_session_timeout_ms
        if not shortest_ms <= join.session_timeout_ms <= longest_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        names = [
            join.new_member_id,
            join.group_instance_id or "",
            join.protocol_type,
            *dict(join.protocols),
        ]
        if any(len(name.encode()) > NAME_BYTES_MAX for name in names):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE if join.protocols else ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def handle_join(self, group: Group, now_ms: int, request_id: int, join: Join) -> None:
        """Admit a new or existing member; answer when the rebalance, if any, completes."""
        names = [name for name, _ in join.protocols]
        if self._is_full(group, join.member_id):
            self._outbox.reply(request_id, join.refuse(ErrorCode.GROUP_MAX_SIZE_REACHED))
            if join.member_id in group.members:  # others took its place in this rebalance
                group.remove(join.member_id)
                self._rebalance.maybe_complete(group, now_ms)
        elif not join.protocol_type or not group.supports(join.protocol_type, names):
            self._outbox.reply(request_id, join.refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif not join.member_id:
            self._join_new(group, now_ms, request_id, join)
        elif join.member_id in group.pending and join.group_instance_id is None:
            self._add(group, now_ms, request_id, join, join.member_id)
        else:
            error_code = group.refusal(join.member_id, join.group_instance_id)
            if error_code is ErrorCode.NONE:
                self._rejoin(group, now_ms, request_id, join)
            else:
                self._outbox.reply(request_id, join.refuse(error_code))

    def maybe_shrink(self, group: Group, now_ms: int) -> None:
        """Rebalance a loaded group that exceeds `group.max.size` (KIP-389)."""
        if len(group.members) > self._settings.group_max_size:
            self._rebalance.prepare(group, now_ms)

    def _is_full(self, group: Group, member_id: str) -> bool:
        """Whether the group has no place for this member, new or existing.

        In a rebalance only members that have joined again have a place (KAFKA-7728, KAFKA-9844).
        """
        placed = [
            member.member_id
            for member in group.members.values()
            if group.state is not GroupState.PREPARING_REBALANCE or member.awaiting_join is not None
        ]
        return member_id not in placed and len(placed) >= self._settings.group_max_size

    def _join_new(self, group: Group, now_ms: int, request_id: int, join: Join) -> None:
        if join.group_instance_id is not None and join.group_instance_id in group.static:
            self._replace(group, now_ms, request_id, join)
        elif join.group_instance_id is None and join.requires_known_member_id:
            group.pending[join.new_member_id] = now_ms + join.session_timeout_ms
            result = JoinResult(
                error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.new_member_id
            )
            self._outbox.reply(request_id, result)
        else:
            self._add(group, now_ms, request_id, join, join.new_member_id)

    def _add(self, group: Group, now_ms: int, request_id: int, join: Join, member_id: str) -> None:
        group.pending.pop(member_id, None)
        if not group.members:
            group.protocol_type = join.protocol_type
        if group.state is GroupState.PREPARING_REBALANCE:
            group.joined_during_delay = True
        group.add(
            Member(
                member_id=member_id,
                group_instance_id=join.group_instance_id,
                client_id=join.client_id,
                client_host=join.client_host,
                rebalance_timeout_ms=join.rebalance_timeout_ms,
                session_timeout_ms=join.session_timeout_ms,
                protocols=join.protocols,
                session_deadline_ms=now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
                is_new=True,
                awaiting_join=request_id,
            )
        )
        self._rebalance.members_changed(group, now_ms)

    def _rejoin(self, group: Group, now_ms: int, request_id: int, join: Join) -> None:
        member = group.members[join.member_id]
        has_changed = member.protocols != join.protocols
        # The leader of a Stable group rejoins to assign the partitions anew.
        forces = group.state is GroupState.STABLE and member.member_id == group.leader
        if group.state is GroupState.PREPARING_REBALANCE or has_changed or forces:
            self._rebalance.supersede_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
            if group.state is not GroupState.PREPARING_REBALANCE:
                self._rebalance_without(group, now_ms, member, request_id, join)
            else:
                member.take_over(join, request_id)
                self._rebalance.maybe_complete(group, now_ms)
        else:  # the response was lost: repeat it
            member.touch(now_ms)
            self._outbox.reply(request_id, self._rebalance.joined(group, member))

    def _rebalance_without(
        self, group: Group, now_ms: int, member: Member, request_id: int, join: Join
    ) -> None:
        """Start a rebalance in which this member has already joined."""
        self._rebalance.prepare(group, now_ms)
        member.take_over(join, request_id)
        self._rebalance.maybe_complete(group, now_ms)

    # Static members.

    def _replace(self, group: Group, now_ms: int, request_id: int, join: Join) -> None:
        """Admit a returning static member; rebalance only if its subscription differs (KIP-345)."""
        old_id = group.static[join.group_instance_id or ""]
        member = group.members[old_id]
        is_stable = group.state is GroupState.STABLE and group.storing_generation is None
        # DEVIATION: Kafka checks neither topics (KAFKA-12759) nor partitions still to be revoked.
        # docs/decisions/0029-static-members.md
        if (
            is_stable
            and self._wants_the_same(group, member, join)
            and not self._must_give_up(group, member)
        ):
            self._replace_once_stored(group, request_id, join)
            return
        self._rename(group, old_id, join.new_member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            member.take_over(join, request_id)
            self._rebalance.maybe_complete(group, now_ms)
        else:
            self._rebalance_without(group, now_ms, member, request_id, join)

    def answer_returning_leader(self, group: Group, request_id: int) -> None:
        """Answer a leader that keeps the assignment of this generation (KIP-814)."""
        leader = group.members[group.leader or ""]
        self._outbox.reply(request_id, self._rebalance.joined(group, leader, skips=True))

    def _wants_the_same(self, group: Group, member: Member, join: Join) -> bool:
        """Whether a returning static member has the protocol and topics of its assignment.

        Owned partitions and their generation are not compared: a restarted process owns none.
        """
        wanted = dict(join.protocols).get(group.protocol_name or "")
        if wanted is None or group.select_protocol(join) != group.protocol_name:
            return False
        known = member.metadata(group.protocol_name)
        if wanted == known or group.protocol_type != CONSUMER:
            return wanted == known
        try:
            return subscribed_topics(wanted) == subscribed_topics(known)
        except MalformedFrame:
            return False

    def _must_give_up(self, group: Group, member: Member) -> bool:
        """Whether the member to replace has yet to revoke partitions meant for others (KIP-429).

        It would have joined again after revoking them. Only a rebalance assigns these partitions to
        another member.
        """
        if group.protocol_type != CONSUMER:
            return False
        try:
            return bool(unrevoked(member.metadata(group.protocol_name), member.assignment))
        except MalformedFrame:
            return False

    def _replace_once_stored(self, group: Group, request_id: int, join: Join) -> None:
        """Write the new member id before the response: the next coordinator must load it."""
        generation_id = group.generation_id
        old_id, new_id = group.static[join.group_instance_id or ""], join.new_member_id

        def done(now_ms: int, error_code: ErrorCode) -> None:
            is_current = group.storing_generation == generation_id
            if is_current:  # else a rebalance began meanwhile, and may be storing its generation
                group.storing_generation = None
            if error_code is not ErrorCode.NONE:
                self._outbox.reply(request_id, join.refuse(error_code))
                return
            if not is_current:
                self._outbox.reply(request_id, join.refuse(ErrorCode.REBALANCE_IN_PROGRESS))
                return
            was_leader = group.leader == old_id
            member = self._rename(group, old_id, new_id)
            member.take_over(join, request_id)
            member.awaiting_join = None
            member.touch(now_ms)
            # An old client would assign if it were named as the leader, and its assignment would be
            # ignored: name its predecessor. A newer client skips the assignment (KIP-814).
            leader = old_id if was_leader and not join.supports_skipping_assignment else None
            self._outbox.reply(
                request_id, self._rebalance.joined(group, member, leader, skips=was_leader)
            )

        group.storing_generation = generation_id
        assignments = {key: member.assignment for key, member in group.members.items()}
        stored = group.to_stored(assignments, group.state_since_ms)
        members = [
            replaced(
                member,
                member_id=new_id,
                rebalance_timeout_ms=join.rebalance_timeout_ms,
                session_timeout_ms=join.session_timeout_ms,
                subscription=dict(join.protocols).get(group.protocol_name or "", b""),
            )
            if member.member_id == old_id
            else member
            for member in stored.members
        ]
        leader = new_id if stored.leader == old_id else stored.leader
        stored = replaced(stored, members=members, leader=leader)
        self._outbox.append((GroupRecord(group_id=group.group_id, stored=stored),), done)

    def _rename(self, group: Group, old_id: str, new_id: str) -> Member:
        """Fence the old member id of a static member, and replace it by the new id."""
        member = group.members[old_id]
        self._rebalance.supersede_join(member, ErrorCode.FENCED_INSTANCE_ID)
        self._rebalance.supersede_sync(member, ErrorCode.FENCED_INSTANCE_ID)
        return group.rename(old_id, new_id)

"""Members that join, change, leave or are replaced, and the group epochs that they begin.

Sources: KIP-848; KIP-1101 (the hash of the topics in the record of the epoch).
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import Final

from quorumlog.broker.groups.core.consumer.group import STATIC_LEFT_EPOCH, Changes, ConsumerMember
from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS
from quorumlog.broker.groups.core.consumer.records import (
    GroupValue,
    MemberValue,
    RecordKind,
    RegularExpressionValue,
    TargetMemberValue,
    to_stored,
)
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.broker.groups.core.consumer.topics import InvalidRegularExpression, Topics

OF_A_MEMBER: Final = (  # in the order of their tombstones
    RecordKind.CURRENT_ASSIGNMENT,
    RecordKind.TARGET_MEMBER,
    RecordKind.MEMBER,
)


@dataclass(frozen=True, slots=True)
class Membership:
    """Changes members. Its only state is the topics; methods add records to `changes`."""

    _topics: Topics

    def admit(self, changes: Changes, member_id: str, request: ConsumerHeartbeat) -> bool:
        """Apply the fields of the request; return whether the subscription has changed."""
        member = changes.group.members.get(member_id)
        before = MemberValue() if member is None else member.metadata
        return self.take(changes, member_id, _updated(before, request))

    def take(self, changes: Changes, member_id: str, after: MemberValue) -> bool:
        """Write the metadata of a member; return whether the subscription has changed."""
        member = changes.group.members.get(member_id)
        before = MemberValue() if member is None else member.metadata
        if member is None or after != before:
            changes.write(RecordKind.MEMBER, after, member_id)
        has_other_names = before.subscribed_topic_names != after.subscribed_topic_names
        has_other_regex = (before.subscribed_topic_regex or "") != (
            after.subscribed_topic_regex or ""
        )
        return member is None or has_other_names or has_other_regex

    def remove(self, changes: Changes, member_ids: Iterable[str], now_ms: int) -> None:
        """Remove members: their partitions become free, and a new epoch begins."""
        for member_id in member_ids:
            self._erase(changes, member_id)
        self.refresh(changes, now_ms, begins_epoch=True)

    def _erase(self, changes: Changes, member_id: str) -> None:
        for kind in OF_A_MEMBER:
            changes.write(kind, None, member_id)

    def leave_for_a_while(self, changes: Changes, member: ConsumerMember) -> None:
        """Keep the place and the assigned partitions of a static member until its session ends."""
        away = replace(
            member.current,
            member_epoch=STATIC_LEFT_EPOCH,
            previous_member_epoch=member.current.member_epoch,
            state=MemberState.STABLE,
            pending_revocation=NO_PARTITIONS,
            assigned_at=dict.fromkeys(member.current.assigned, 0),
        )
        changes.write(RecordKind.CURRENT_ASSIGNMENT, away.to_value(), member.member_id)

    def replace(self, changes: Changes, old_id: str, new_id: str) -> None:
        """Give the place of a static member to its replacement, under the new member id."""
        group = changes.group
        old, target = group.members[old_id], group.target_of(old_id)
        current = replace(old.current, member_epoch=0, previous_member_epoch=0)
        self._erase(changes, old_id)
        if new_id in group.members:  # it was another member, and loses that place
            self._erase(changes, new_id)
        changes.write(RecordKind.MEMBER, old.metadata, new_id)
        stored = TargetMemberValue(topic_partitions=to_stored(target))
        changes.write(RecordKind.TARGET_MEMBER, stored, new_id)
        changes.write(RecordKind.CURRENT_ASSIGNMENT, current.to_value(), new_id)

    def refresh(self, changes: Changes, now_ms: int, *, begins_epoch: bool = False) -> None:
        """Refresh the topics; begin an epoch if they have changed, or if `begins_epoch`."""
        group = changes.group
        are_known = self._resolve(changes, now_ms)
        names = group.all_names()
        metadata_hash = self._metadata_hash(names)
        if begins_epoch or metadata_hash != group.metadata_hash:
            value = GroupValue(epoch=group.group_epoch + 1, metadata_hash=metadata_hash)
            changes.write(RecordKind.GROUP, value)
        if group.has_partition_metadata:
            changes.write(RecordKind.PARTITION_METADATA, None)
        group.subscribed_names, group.is_metadata_due = names, not are_known

    def _metadata_hash(self, names: Set[str]) -> int:
        return self._topics.metadata_hash(names)

    def _resolve(self, changes: Changes, now_ms: int) -> bool:
        """Update the topics of the regular expressions; return whether all are up to date."""
        group = changes.group
        are_known = True
        subscribed = group.subscribed_expressions()
        for expression in subscribed:
            known, rights = group.expressions.get(expression), group.rights.get(expression)
            try:
                matching = self._topics.matching(expression)
            except InvalidRegularExpression:
                continue  # another broker accepted it: its topics stay
            # After a failover the rights come with the next heartbeat of a member.
            if matching is None or (rights is None and self._topics.has_authorizer):
                are_known = False  # its topics stay until the next heartbeat
                continue
            if rights is not None:
                matching = frozenset(filter(rights.may_describe, matching))
            if known != matching:
                value = RegularExpressionValue(
                    topics=sorted(matching), version=self._topics.version, timestamp_ms=now_ms
                )
                changes.write(RecordKind.REGULAR_EXPRESSION, value, expression)
        for expression in sorted(group.expressions.keys() - subscribed):
            changes.write(RecordKind.REGULAR_EXPRESSION, None, expression)
        for expression in group.rights.keys() - subscribed:
            del group.rights[expression]
        return are_known


def _updated(before: MemberValue, request: ConsumerHeartbeat) -> MemberValue:
    """Return the member's metadata after the request; fields that it leaves out stay."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    regex, assignor = request.subscribed_topic_regex, request.server_assignor
    return MemberValue(
        instance_id=request.instance_id or before.instance_id,
        rack_id=request.rack_id or before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=(
            before.subscribed_topic_names if names is None else sorted({*names})
        ),
        subscribed_topic_regex=before.subscribed_topic_regex if regex is None else regex,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=before.server_assignor if assignor is None else assignor,
    )

"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

The coordinator assigns their partitions, too. A join reports the member's partitions, as a
heartbeat of KIP-848 does; the generation of its response is the member epoch. The response to a
Heartbeat makes the member join again when it has partitions to revoke or to get. Every refusal is
raised as `RequestRefused`, before the first change. Source: KIP-848 (migration).
"""

from dataclasses import dataclass

from quorumlog.broker.groups.core.consumer.conversion import (
    NotConvertible,
    by_id,
    classic_metadata,
    encode_assignment,
    read_subscription,
)
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.heartbeats import Admitted, Heartbeats
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.records import ClassicMemberMetadata
from quorumlog.broker.groups.core.consumer.requests import RequestRefused
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.broker.groups.core.member_messages import CONSUMER
from quorumlog.broker.groups.core.requests import (
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    LeaveResult,
    LeavingMember,
    Sync,
    SyncResult,
)
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)


@dataclass(frozen=True, slots=True)
class ClassicMembers:
    """Serves classic members. Its only state is the topics; methods add records to `changes`."""

    _settings: BrokerSettings
    _topics: Topics
    _heartbeats: Heartbeats

    # --- Joining ---

    def begin_join(self, changes: Changes, now_ms: int, join: Join) -> JoinResult | Admitted:
        """Admit a new or existing member; the response needs the target of the epoch."""
        group = changes.group
        self._check_protocols(group, join)
        self._check_member(group, join)
        subscription = self._subscription(join)
        is_dynamic = join.group_instance_id is None
        if is_dynamic and not join.member_id and join.requires_known_member_id:
            return JoinResult(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.new_member_id)
        member_id = join.member_id or join.new_member_id
        membership = self._heartbeats.membership
        owner = group.static.get(join.group_instance_id or "")
        if owner is not None and owner != member_id:
            membership.replace(changes, owner, member_id)
        metadata = classic_metadata(join, subscription)
        has_changed = membership.take(changes, member_id, metadata)
        self._heartbeats.look_at_topics(changes, now_ms, has_changed=has_changed)
        return Admitted(member_id=member_id)

    def finish_join(self, changes: Changes, join: Join, member_id: str) -> JoinResult:
        """Reconcile a member that has joined; return the response."""
        group = changes.group
        self._heartbeats.reconcile(changes, member_id, self._owned(join))
        return JoinResult(
            error_code=ErrorCode.NONE,
            member_id=member_id,
            generation_id=group.members[member_id].current.member_epoch,
            protocol_type=CONSUMER,
            protocol_name=join.protocols[0][0],
        )

    def _owned(self, join: Join) -> Partitions:
        """Return the partitions that a member reports to own when it joins."""
        owned = self._subscription(join).owned_partitions
        return by_id(((one.topic, one.partitions) for one in owned), self._topics)

    def _subscription(self, join: Join) -> ConsumerProtocolSubscription:
        try:
            return read_subscription(join.protocols[0][1], join.member_id)
        except NotConvertible as error:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error

    def _check_protocols(self, group: ConsumerGroup, join: Join) -> None:
        common = {name for name, _ in join.protocols}
        for member_id, member in group.members.items():
            classic = member.metadata.classic
            if classic is not None and member_id != join.member_id:
                common &= {one.name for one in classic.supported_protocols}
        if join.protocol_type != CONSUMER or not common:
            raise RequestRefused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol that all members support"
            )

    def _check_member(self, group: ConsumerGroup, join: Join) -> None:
        owner = group.static.get(join.group_instance_id or "")
        if join.group_instance_id is not None and join.member_id:
            if owner is None:
                raise _unknown(join.member_id)
            if owner != join.member_id:
                raise RequestRefused(
                    ErrorCode.FENCED_INSTANCE_ID, "another member has the instance id"
                )
        is_new = join.member_id not in group.members and owner is None
        if is_new and len(group.members) >= self._settings.group_consumer_max_size:
            raise RequestRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, "the group has its most members")

    # --- Members that have joined ---

    def sync(self, group: ConsumerGroup, sync: Sync) -> SyncResult:
        """Return the current assignment of a member that has joined. Raises RequestRefused."""
        member = self._find(group, sync)
        classic = member.metadata.classic or ClassicMemberMetadata()
        names = [one.name for one in classic.supported_protocols]
        if sync.protocol_type not in {None, CONSUMER} or sync.protocol_name not in {None, *names}:
            raise RequestRefused(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the protocol is another one"
            )
        is_behind = group.group_epoch > member.current.member_epoch
        if is_behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
            raise RequestRefused(
                ErrorCode.REBALANCE_IN_PROGRESS, "there is a newer epoch: join again"
            )
        return SyncResult(
            error_code=ErrorCode.NONE,
            protocol_type=CONSUMER,
            protocol_name=sync.protocol_name or names[0],
            assignment=encode_assignment(member.current.assigned, self._topics.names),
        )

    def heartbeat(self, changes: Changes, now_ms: int, heartbeat: Heartbeat) -> ErrorCode:
        """Return REBALANCE_IN_PROGRESS if the member must join again, else NONE."""
        group = changes.group
        member = self._find(group, heartbeat)
        if group.is_metadata_due:
            self._heartbeats.membership.refresh(changes, now_ms)
        current = member.current
        must_join = (
            group.group_epoch > current.member_epoch
            or self._heartbeats.next_assignment(group, member.member_id, current.assigned)
            != current
        )
        return ErrorCode.REBALANCE_IN_PROGRESS if must_join else ErrorCode.NONE

    def leave(self, changes: Changes, now_ms: int, leave: Leave) -> LeaveResult:
        """Remove members of either protocol, one outcome each.

        A member of KIP-848 leaves by a heartbeat; an administrator removes it by LeaveGroup.
        """
        group = changes.group
        outcomes: list[ErrorCode] = []
        gone: list[str] = []
        for leaving in leave.members:
            outcome, member_id = _leaving(group, leaving)
            if outcome is ErrorCode.NONE and member_id in gone:
                outcome = ErrorCode.UNKNOWN_MEMBER_ID
            elif outcome is ErrorCode.NONE:
                gone.append(member_id)
            outcomes.append(outcome)
        if gone:
            self._heartbeats.membership.remove(changes, gone, now_ms)
        return LeaveResult(error_code=ErrorCode.NONE, members=tuple(outcomes))

    def _find(self, group: ConsumerGroup, request: Sync | Heartbeat) -> ConsumerMember:
        """Return the classic member of a request at its present epoch. Raises RequestRefused."""
        if request.group_instance_id is not None:
            owner = group.static.get(request.group_instance_id)
            if owner is not None and owner != request.member_id:
                raise RequestRefused(
                    ErrorCode.FENCED_INSTANCE_ID, "another member has the instance id"
                )
            if owner is None:
                raise _unknown(request.member_id)
        member = group.members.get(request.member_id)
        if member is None or not member.is_classic:
            raise _unknown(request.member_id)
        if request.generation_id != member.current.member_epoch:
            raise RequestRefused(
                ErrorCode.ILLEGAL_GENERATION,
                f"generation {member.current.member_epoch} is expected",
            )
        return member


def _leaving(group: ConsumerGroup, leaving: LeavingMember) -> tuple[ErrorCode, str]:
    """Return the outcome for a member that leaves, and its member id."""
    member_id = leaving.member_id
    if leaving.group_instance_id is not None:
        owner = group.static.get(leaving.group_instance_id)
        if owner is not None and member_id and owner != member_id:
            return ErrorCode.FENCED_INSTANCE_ID, member_id
        member_id = owner or ""
    is_there = member_id in group.members
    return (ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_MEMBER_ID), member_id


def _unknown(member_id: str) -> RequestRefused:
    return RequestRefused(
        ErrorCode.UNKNOWN_MEMBER_ID, f"the group has no classic member {member_id!r}: join again"
    )

"""The steps of one heartbeat: admit the member; once there is a target, reconcile it.

Source: KIP-848. The checks of `admission.py` come first, so a refused heartbeat changes no state.
"""

from dataclasses import dataclass

from quorumlog.broker.groups.core.consumer import admission
from quorumlog.broker.groups.core.consumer.group import (
    LEFT_EPOCH,
    STATIC_LEFT_EPOCH,
    Changes,
    ConsumerGroup,
)
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.reconciliation import Aim, CurrentAssignment, reconcile
from quorumlog.broker.groups.core.consumer.records import RecordKind
from quorumlog.broker.groups.core.consumer.requests import (
    ConsumerHeartbeat,
    HeartbeatResult,
    RequestRefused,
    TopicRights,
)
from quorumlog.broker.groups.core.consumer.settings import GroupTimes
from quorumlog.broker.groups.core.consumer.topics import InvalidRegularExpression, Topics
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A member whose request was applied; `told`: its assignment before; None: it was new."""

    member_id: str
    told: CurrentAssignment | None = None


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """Serves heartbeats. Its only state is the topics; methods add records to `changes`."""

    _settings: BrokerSettings
    _topics: Topics
    _times: GroupTimes
    membership: Membership

    def begin(
        self, changes: Changes, now_ms: int, request: ConsumerHeartbeat
    ) -> HeartbeatResult | Admitted:
        """Apply the fields of the request; the response needs the target of the epoch.

        A member that leaves needs no target: return its response. Raises RequestRefused, before the
        first change.
        """
        if request.member_epoch in {LEFT_EPOCH, STATIC_LEFT_EPOCH}:
            return self._leave(changes, now_ms, request)
        group = changes.group
        member_id = request.member_id or request.new_member_id
        require(bool(member_id), "a member without an id is given one")
        joins = request.member_epoch == 0
        if joins:
            admission.check_joining(group, request, self._settings)
        else:
            admission.find_present(group, request)
        self._check_expression(group, request)
        owner = group.static.get(request.instance_id or "") if joins else None
        if owner is not None and owner != member_id:
            self.membership.replace(changes, owner, member_id)
        told = group.members[member_id].current if member_id in group.members else None
        has_changed = self.membership.admit(changes, member_id, request)
        self._note_rights(group, member_id, request.rights)
        self.look_at_topics(changes, now_ms, has_changed=has_changed)
        return Admitted(member_id=member_id, told=told)

    def look_at_topics(self, changes: Changes, now_ms: int, *, has_changed: bool) -> None:
        """Begin an epoch if subscriptions or topics have changed."""
        group = changes.group
        begins_epoch = has_changed or group.group_epoch == 0
        if begins_epoch or group.is_metadata_due:
            self.membership.refresh(changes, now_ms, begins_epoch=begins_epoch)

    def finish(
        self, changes: Changes, request: ConsumerHeartbeat, admitted: Admitted
    ) -> HeartbeatResult:
        """Reconcile; return the response, to be sent once the changes are committed."""
        self.reconcile(changes, admitted.member_id, request.owned)
        return self._answer(changes.group, admitted.member_id, request, admitted.told)

    def _answer(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: ConsumerHeartbeat,
        told: CurrentAssignment | None,
    ) -> HeartbeatResult:
        """Return the response, with the assignment if it is new or the heartbeat is full."""
        current = group.members[member_id].current
        has_heard = told is not None and told.member_epoch == request.member_epoch
        is_unchanged = told is not None and told.assigned == current.assigned
        tells = request.is_full or not has_heard or not is_unchanged
        return HeartbeatResult(
            error_code=ErrorCode.NONE,
            member_id=member_id,
            member_epoch=current.member_epoch,
            heartbeat_interval_ms=self._times.heartbeat_interval_ms(group.group_id),
            assignment=current.assigned if tells else None,
        )

    def _leave(self, changes: Changes, now_ms: int, request: ConsumerHeartbeat) -> HeartbeatResult:
        member = admission.find_leaving(changes.group, request)
        if request.member_epoch == STATIC_LEFT_EPOCH:
            self.membership.leave_for_a_while(changes, member)
        else:
            self.membership.remove(changes, (member.member_id,), now_ms)
        return HeartbeatResult(
            error_code=ErrorCode.NONE, member_id=member.member_id, member_epoch=request.member_epoch
        )

    def _check_expression(self, group: ConsumerGroup, request: ConsumerHeartbeat) -> None:
        expression = request.subscribed_topic_regex
        if not expression or expression in group.expressions:
            return
        try:
            self._topics.matching(expression)
        except InvalidRegularExpression as error:
            raise RequestRefused(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"subscribed_topic_regex {expression!r}: {error}",
            ) from error

    def _note_rights(
        self, group: ConsumerGroup, member_id: str, rights: TopicRights | None
    ) -> None:
        """Have the member's expression matched again if the rights of its last match are void.

        As in Kafka, members with equal expressions share the topics: by the rights of one of them.
        """
        expression = group.members[member_id].metadata.subscribed_topic_regex
        if rights is None or not expression:
            return
        before = group.rights.get(expression)
        if before is None or before.version is not rights.version:
            group.rights[expression], group.is_metadata_due = rights, True

    def reconcile(self, changes: Changes, member_id: str, reported: Partitions | None) -> None:
        """Reconcile a member with the target; `reported`: the partitions it reports to have."""
        after = self.next_assignment(changes.group, member_id, reported)
        if after != changes.group.members[member_id].current:
            changes.write(RecordKind.CURRENT_ASSIGNMENT, after.to_value(), member_id)

    def next_assignment(
        self, group: ConsumerGroup, member_id: str, reported: Partitions | None
    ) -> CurrentAssignment:
        """Return the next assignment of a member that reports these partitions."""
        member = group.members[member_id]
        if member.current.is_reconciled_to(group.assignment_epoch):
            return member.current
        aim = Aim(
            epoch=group.assignment_epoch,
            target=group.target_of(member_id),
            subscribed=self._topics.ids(group.names_of(member)),
        )
        return reconcile(
            member.current, aim, member_id=member_id, owners=group.owners, reported=reported
        )

"""How a member comes from what it has to what it is to have, without a partition in two hands.

A member keeps its epoch while it has partitions to give up. They are free once it reports that it
has none of them. Then it gets the epoch of the target, and what is free of its part; the rest
follows as others give it up. Source: KIP-848 (the reconciliation process).
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from quorumlog.broker.groups.core.consumer.partitions import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from quorumlog.broker.groups.core.consumer.records import (
    CurrentAssignmentValue,
    assignment_epochs_of,
    from_stored,
    to_assigned,
)
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.wire.codec.identifiers import TopicId

UNKNOWN_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """What a member was told, and what is awaited of it.

    It owns `assigned` and `pending_revocation`. A member whose last answer was lost comes with
    `previous_member_epoch`; that is its present epoch if only its partitions have changed.
    `assigned_at`: for each partition that it owns, the member epoch at which it was assigned. A
    commit of the member at that epoch or a later one is not stale (KIP-1251).
    """

    member_epoch: int = 0
    previous_member_epoch: int = UNKNOWN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS
    assigned_at: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    @property
    def owned(self) -> Partitions:
        """What no other member may have."""
        return self.assigned | self.pending_revocation

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether the member has its part of that target."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def to_value(self) -> CurrentAssignmentValue:
        """Return the value of its record."""
        return CurrentAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned_partitions=to_assigned(self.assigned, self.assigned_at),
            partitions_pending_revocation=to_assigned(self.pending_revocation, self.assigned_at),
        )

    @classmethod
    def from_value(cls, value: CurrentAssignmentValue) -> "CurrentAssignment":
        """Return what a record says."""
        default = max(value.member_epoch, 0)  # of a static member that is away, it is negative
        owned = [*value.assigned_partitions, *value.partitions_pending_revocation]
        return cls(
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=from_stored(value.assigned_partitions),
            pending_revocation=from_stored(value.partitions_pending_revocation),
            assigned_at=assignment_epochs_of(owned, default),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What one member is to have: its part of the target of `epoch`, of subscribed topics only."""

    epoch: int
    target: Partitions
    subscribed: Set[TopicId]

    def reachable(self) -> Partitions:
        """Return the part of the target that the member still wants."""
        return frozenset(one for one in self.target if one.topic_id in self.subscribed)


def reconcile(
    current: CurrentAssignment,
    aim: Aim,
    *,
    member_id: str,
    owners: Mapping[TopicIdPartition, str],
    reported: Partitions | None,
) -> CurrentAssignment:
    """Return the member's next assignment, or the same if there is nothing to do yet.

    `owners`: every partition that a member owns, and the member. `reported`: what the member says
    it has; None: it says nothing, so it may have all it was told.
    """
    if current.is_reconciled_to(aim.epoch):
        return current
    has_to_revoke = current.state is MemberState.UNREVOKED_PARTITIONS
    if has_to_revoke and _may_have(reported, current.pending_revocation):
        dropped = frozenset(one for one in current.assigned if one.topic_id not in aim.subscribed)
        return _changed(
            current,
            assigned=current.assigned - dropped,
            pending_revocation=current.pending_revocation | dropped,
        )
    wanted = aim.reachable()
    kept = current.assigned & wanted
    revoked = current.assigned - kept
    if revoked and _may_have(reported, revoked):
        return _changed(
            current,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            pending_revocation=revoked,
        )
    unreleased = {one for one in wanted - kept if owners.get(one, member_id) != member_id}
    return _changed(
        current,
        member_epoch=aim.epoch,
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
        assigned=wanted - unreleased,
        pending_revocation=NO_PARTITIONS,
    )


def _may_have(reported: Partitions | None, revoked: Partitions) -> bool:
    return reported is None or not reported.isdisjoint(revoked)


def _changed(
    current: CurrentAssignment,
    *,
    assigned: Partitions,
    pending_revocation: Partitions,
    member_epoch: int | None = None,
    state: MemberState | None = None,
) -> CurrentAssignment:
    """Return it changed; the epoch until now is the previous one, even if it stays.

    A partition that the member had and keeps was assigned when it was; one that it is given again
    while it has yet to give it up is assigned anew.
    """
    epoch = current.member_epoch if member_epoch is None else member_epoch
    known = current.assigned_at
    assigned_at = {one: known[one] for one in pending_revocation}
    assigned_at |= {one: known[one] if one in current.assigned else epoch for one in assigned}
    changed = replace(
        current,
        member_epoch=epoch,
        state=current.state if state is None else state,
        assigned=assigned,
        pending_revocation=pending_revocation,
        assigned_at=assigned_at,
    )
    if changed == current:
        return current
    return replace(changed, previous_member_epoch=current.member_epoch)

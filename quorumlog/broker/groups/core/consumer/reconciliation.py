"""Reconciliation of a member with its target: no partition ever has two owners.

A member keeps its epoch while it has partitions to revoke. They are free once the member reports
that it has none of them. Then it gets the epoch of the target, and the free partitions of its part;
the others follow as their owners revoke them. Source: KIP-848 (the reconciliation process).
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
    """A member's assigned partitions, and the partitions that it has yet to revoke.

    The member owns both. A member that missed its last response sends `previous_member_epoch`,
    which equals its present epoch if only its partitions have changed. `assigned_at`: for each
    owned partition, the member epoch at which it was assigned. A commit of the member at that epoch
    or a later one is not stale (KIP-1251).
    """

    member_epoch: int = 0
    previous_member_epoch: int = UNKNOWN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS
    assigned_at: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    @property
    def owned(self) -> Partitions:
        """The partitions that no other member may have."""
        return self.assigned | self.pending_revocation

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether the member has its whole part of the target of this epoch."""
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
        """Return the assignment of a record's value."""
        default = max(value.member_epoch, 0)  # negative: the epoch of a static member that is away
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
    """The goal of one member: its part of the target of `epoch`, and its subscribed topics."""

    epoch: int
    target: Partitions
    subscribed: Set[TopicId]

    def reachable(self) -> Partitions:
        """Return the partitions of the target whose topics the member still subscribes to."""
        return frozenset(one for one in self.target if one.topic_id in self.subscribed)


def reconcile(
    current: CurrentAssignment,
    aim: Aim,
    *,
    member_id: str,
    owners: Mapping[TopicIdPartition, str],
    reported: Partitions | None,
) -> CurrentAssignment:
    """Return the member's next assignment, or the present one if it cannot change yet.

    `owners`: the owner of each owned partition. `reported`: the partitions that the member reports
    to have; None: no report, so it may have all that it owns.
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
    """Return the changed assignment; the present epoch becomes the previous, even if unchanged.

    A partition that stays assigned keeps its assignment epoch. A partition that was pending
    revocation and is assigned again gets the new epoch.
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

"""The states of a group of the consumer protocol, the states of its members, and legal changes.

Source: KIP-848. The state of a group follows from its epochs and members (`ConsumerGroup`); the
state of a member is in its record, and shows how far its reconciliation is.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final


class ConsumerGroupState(Enum):
    """The values are Kafka's words in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"  # no members; perhaps offsets
    ASSIGNING = "Assigning"  # the group epoch is ahead of the target assignment
    RECONCILING = "Reconciling"  # some member does not have its part of the target yet
    STABLE = "Stable"  # every member has its part of the target
    DEAD = "Dead"  # dropped: requests are refused as for a group that does not exist


class MemberState(IntEnum):
    """The values are those of a CurrentMemberAssignment record."""

    STABLE = 0  # at the epoch of the target, with its part of it
    UNREVOKED_PARTITIONS = 1  # at an older epoch, until it has revoked partitions
    UNRELEASED_PARTITIONS = 2  # at the epoch of the target, until others have revoked partitions
    UNKNOWN = 127  # written by a newer version: it may continue only without partitions

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":
        del value
        return cls.UNKNOWN


GROUP_TRANSITIONS: Final[Mapping[ConsumerGroupState, frozenset[ConsumerGroupState]]] = {
    ConsumerGroupState.EMPTY: frozenset(
        {
            ConsumerGroupState.ASSIGNING,
            ConsumerGroupState.RECONCILING,
            ConsumerGroupState.STABLE,
            ConsumerGroupState.DEAD,
        }
    ),
    ConsumerGroupState.ASSIGNING: frozenset(
        {ConsumerGroupState.RECONCILING, ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY}
    ),
    ConsumerGroupState.RECONCILING: frozenset(
        {ConsumerGroupState.ASSIGNING, ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY}
    ),
    ConsumerGroupState.STABLE: frozenset(
        {ConsumerGroupState.ASSIGNING, ConsumerGroupState.RECONCILING, ConsumerGroupState.EMPTY}
    ),
    ConsumerGroupState.DEAD: frozenset(),
}
"""From -> to. A small target is computed within the step: the group then skips Assigning."""

MEMBER_TRANSITIONS: Final[Mapping[MemberState, frozenset[MemberState]]] = {
    MemberState.STABLE: frozenset(
        {MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS}
    ),
    MemberState.UNREVOKED_PARTITIONS: frozenset(
        {MemberState.STABLE, MemberState.UNRELEASED_PARTITIONS}
    ),
    MemberState.UNRELEASED_PARTITIONS: frozenset(
        {MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS}
    ),
    MemberState.UNKNOWN: frozenset({MemberState.STABLE, MemberState.UNRELEASED_PARTITIONS}),
}
"""From -> to. A member in UNKNOWN continues without partitions, so it has none to revoke."""

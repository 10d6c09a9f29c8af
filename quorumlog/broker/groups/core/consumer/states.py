"""The life of a group of the consumer protocol, and of a member of it, as tables.

Source: KIP-848. The state of a group follows from its epochs and members (`ConsumerGroup`); the
state of a member is in its record, and says what its reconciliation waits for.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final


class ConsumerGroupState(Enum):
    """The values are Kafka's words in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"  # no members; perhaps offsets
    ASSIGNING = "Assigning"  # the group epoch is ahead of the target assignment
    RECONCILING = "Reconciling"  # there is a target, and not every member has come to it
    STABLE = "Stable"  # every member has its part of the target
    DEAD = "Dead"  # forgotten: requests get the answer that there is no such group


class MemberState(IntEnum):
    """The values are those of a CurrentMemberAssignment record."""

    STABLE = 0  # at the epoch of the target, with its part of it
    UNREVOKED_PARTITIONS = 1  # at an older epoch, until it has given partitions up
    UNRELEASED_PARTITIONS = 2  # at the epoch of the target, until others have given partitions up
    UNKNOWN = 127  # written by a newer version: it may go on from scratch only

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
"""From -> to. A target that is small is made at once: then a group is not seen to be Assigning."""

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
"""From -> to. A member of unknown state owns nothing when it goes on, so it revokes nothing."""

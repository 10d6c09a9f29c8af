"""The life of a group, as a table."""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """The values are Kafka's words in DescribeGroups and ListGroups."""

    EMPTY = "Empty"  # no members; perhaps offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # members are (re)joining
    COMPLETING_REBALANCE = "CompletingRebalance"  # the leader computes the assignment
    STABLE = "Stable"  # the assignment of this generation is committed
    DEAD = "Dead"  # forgotten: requests get the answer that there is no such group


TRANSITIONS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.DEAD: frozenset(),
}
"""From -> to. A group dies only when empty: unloading a partition forgets its groups whole."""

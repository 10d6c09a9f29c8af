"""The states of a classic group, and the legal changes between them."""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """The values are Kafka's words in DescribeGroups and ListGroups."""

    EMPTY = "Empty"  # no members; perhaps offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # members are (re)joining
    COMPLETING_REBALANCE = "CompletingRebalance"  # the leader computes the assignment
    STABLE = "Stable"  # the assignment of this generation is committed
    DEAD = "Dead"  # dropped: requests are refused as for a group that does not exist


TRANSITIONS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.DEAD: frozenset(),
}
"""From -> to. Only an empty group dies: unloading a partition drops groups without a transition."""

"""Waits of tests: for the leaders of a topic, and for a group without lag."""

from typing import TYPE_CHECKING

from quorumlog.cluster.cluster_waits import wait_here
from quorumlog.cluster.conditions import GroupCondition, TopicCondition
from quorumlog.cluster.waits import TIMEOUT_S, TookTooLong, wait_until

if TYPE_CHECKING:
    from quorumlog.cluster import LocalCluster

__all__ = ["TookTooLong", "wait_for_leaders", "wait_until", "wait_until_lag_is_zero"]


def wait_for_leaders(
    cluster: "LocalCluster", topic: str, *, timeout_s: float = TIMEOUT_S
) -> list[int]:
    """Return the leaders of all partitions once all unfenced brokers agree on running leaders.

    It blocks, as `cluster.wait(topic=...)` does without an event loop. Raises TookTooLong.
    """
    seen = wait_here(cluster, TopicCondition(topic=topic), None, timeout_s=timeout_s)
    return [int(partition["leader"]) for partition in seen["partitions"]]


def wait_until_lag_is_zero(
    cluster: "LocalCluster", group_id: str, *, timeout_s: float = TIMEOUT_S
) -> None:
    """Return when the group's committed offsets are the ends of their partitions.

    The ends are the high watermarks (`read_uncommitted`). Raises TookTooLong with the lags.
    """
    wanted = GroupCondition(group=group_id, committed="end")
    wait_here(cluster, None, wanted, timeout_s=timeout_s)

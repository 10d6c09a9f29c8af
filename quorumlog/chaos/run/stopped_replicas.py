"""The end of a run on a cluster of its own: the nodes stop, and their logs are compared.

No client reads every replica, so two replicas may differ unnoticed. A difference in committed
records becomes a row of the history, and every later check of it gives the same verdict.
"""

from collections.abc import Sequence
from typing import NamedTuple

from quorumlog.chaos.faults.rows import REPLICAS_DIFFER
from quorumlog.chaos.history import NEMESIS, HistoryWriter
from quorumlog.cluster import LocalCluster
from quorumlog.cluster.compared_replicas import compare


class ComparedReplicas(NamedTuple):
    """The number of partitions whose replicas were compared, and of those that differ."""

    compared: int
    differing: int

    @property
    def text(self) -> str:
        """The numbers, for a person."""
        return (
            f"the stopped replicas of {self.compared} partitions were compared; "
            f"{self.differing} differ"
        )


def stop_and_compare(cluster: LocalCluster, history: HistoryWriter) -> ComparedReplicas:
    """Stop all nodes, and write a row for each partition whose replicas differ.

    A node that had to be killed is left out: the end of its log may be torn. Raises ClusterError.
    """
    views = [cluster.node_status(node_id) for node_id in cluster.running()]
    committed = max((int(view["metadata_offset"]) for view in views if view is not None), default=0)
    killed = cluster.stop()
    outcomes = compare(cluster.directory, without=killed, metadata_end=committed)
    differing = {name: one for name, one in outcomes.items() if one.offset is not None}
    for name, one in differing.items():
        nodes = ",".join(map(str, one.nodes))
        history.append(NEMESIS, "info", REPLICAS_DIFFER, node=nodes, details=f"{name}: {one.how}")
    # Without a high watermark, nothing is compared: there is a reason, and no offset.
    compared = [one for one in outcomes.values() if one.offset is not None or not one.how]
    return ComparedReplicas(len(compared), len(differing))


def in_all(compared: Sequence[ComparedReplicas]) -> ComparedReplicas:
    """Return the sums of the numbers of several clusters."""
    return ComparedReplicas(
        sum(one.compared for one in compared), sum(one.differing for one in compared)
    )

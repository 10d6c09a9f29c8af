"""The voters of a cluster of processes: their changes, and whether they need a disk."""

import asyncio
from typing import Any, Final

from quorumlog.chaos.back_ends.voter_changer import VoterChanger
from quorumlog.cluster import LocalCluster, layout
from quorumlog.cluster.roles import CONTROLLER


class LocalVoters(VoterChanger):
    """The voters of a LocalCluster. A file in each directory has the directory's id."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster: Final = cluster
        super().__init__(
            cluster.bootstrap,
            controllers=[node.id for node in cluster.nodes if CONTROLLER in node.roles],
            directory_of=lambda node_id: layout.directory_id(cluster.directory, node_id),
            now_s=lambda: asyncio.get_running_loop().time(),
        )


def why_needed(status: dict[str, Any] | None, node_id: int) -> str:
    """Return why a cluster may need a node's copies, by its best-informed node, or "".

    It needs none if other nodes lead, in sync, every partition that this node has a copy of.
    """
    if status is None or status["controller_id"] in {None, -1, node_id}:
        return "no other node has reported the active controller"
    partitions = [one for topic in status["topics"].values() for one in topic["partitions"]]
    copies = [one for one in partitions if node_id in one["replicas"]]
    if any(one["leader"] in {-1, node_id} or node_id in one["isr"] for one in copies):
        return "it leads a partition, or is in its ISR"
    return ""

"""Shared clusters between two tests: nodes that ran before a test run after it."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from quorumlog.cluster import ClusterError
from quorumlog.cluster.cluster_status import NodeState
from quorumlog.testing.shared import SharedCluster

if TYPE_CHECKING:
    from quorumlog.chaos.back_ends.local_processes import LocalProcesses
    from quorumlog.cluster import LocalCluster

RUNS, PAUSED, KILLED = NodeState.NO_ANSWER, NodeState.PAUSED, NodeState.KILLED


class Cluster:
    """Nodes with states; `stuck`: nodes that do not start."""

    def __init__(self) -> None:
        self.states = {1: RUNS, 2: RUNS, 3: KILLED}
        self.nodes = [SimpleNamespace(id=node_id) for node_id in self.states]
        self.stuck: set[int] = set()
        self.marked: Any = None

    def state(self, node_id: int) -> NodeState:
        return self.states[node_id]

    def resume(self, node_id: int) -> None:
        self.states[node_id] = RUNS

    def start_node(self, node_id: int) -> None:
        if node_id in self.stuck:
            raise ClusterError(f"node {node_id} is not ready")
        self.states[node_id] = RUNS


def back_end_of(cluster: Cluster) -> "LocalProcesses":
    return cast("LocalProcesses", SimpleNamespace(cluster=cluster))


def broken_in_a_test(shared: SharedCluster, cluster: Cluster) -> None:
    with shared.nodes_kept(cast("LocalCluster", cluster)):
        cluster.states |= {1: KILLED, 2: PAUSED}
        cluster.marked = object()


def test_a_test_leaves_the_nodes_as_it_found_them() -> None:
    cluster = Cluster()
    broken_in_a_test(SharedCluster(resets=False), cluster)
    assert cluster.states == {1: RUNS, 2: RUNS, 3: KILLED}
    assert cluster.marked is None


def test_a_node_that_did_not_start_is_due_before_the_next_test() -> None:
    shared, cluster = SharedCluster(resets=False), Cluster()
    back_end = back_end_of(cluster)
    shared.adopt(back_end)
    cluster.stuck = {1}
    with pytest.raises(ClusterError, match="node 1 is not ready"):
        broken_in_a_test(shared, cluster)
    assert cluster.states == {1: KILLED, 2: RUNS, 3: KILLED}
    with pytest.raises(ClusterError, match="node 1 is not ready"):
        shared.adopt(back_end)
    cluster.stuck.clear()
    shared.adopt(back_end)
    assert cluster.states == {1: RUNS, 2: RUNS, 3: KILLED}
    cluster.states[2] = KILLED  # by a fixture of a wider scope
    shared.adopt(back_end)
    assert cluster.states == {1: RUNS, 2: KILLED, 3: KILLED}


def test_a_new_cluster_owes_no_node_of_the_last() -> None:
    shared, cluster, other = SharedCluster(resets=False), Cluster(), Cluster()
    cluster.stuck = {1}
    with pytest.raises(ClusterError):
        broken_in_a_test(shared, cluster)
    other.states[1] = KILLED
    shared.adopt(back_end_of(other))
    assert other.states[1] is KILLED

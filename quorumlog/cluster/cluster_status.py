"""The status of a cluster, from the states of its processes and the views of its nodes.

A node returns its own view of the cluster. Without a majority of the voters that view is outdated:
it still names dead leaders and a dead controller. So each node is shown in the state of its
process, and a controller only if it answers together with a majority.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

View = Mapping[str, Any]
"""A node's response to GET /api/v1/status."""


class NodeState(Enum):
    """The state of a node, by its process."""

    RUNNING = "running"  # its process runs, and it answers
    NO_ANSWER = "no answer"  # its process runs
    PAUSED = "paused"  # by SIGSTOP
    STOPPED = "stopped"  # it ended with status 0
    EXITED = "exited"  # it ended with another status
    KILLED = "killed"  # it ended without a status: SIGKILL, or a loss of power
    NOT_STARTED = "not started"

    @property
    def is_dead(self) -> bool:
        """Whether the node has no process."""
        return self not in {NodeState.RUNNING, NodeState.NO_ANSWER, NodeState.PAUSED}


def best_view(views: Mapping[int, View]) -> int | None:
    """Return the id of the node with the newest metadata; None: no node answers."""
    return max(views, key=lambda node_id: int(views[node_id]["metadata_offset"]), default=None)


def voters_of(view: View | None, configured: Collection[int]) -> dict[int, str]:
    """Return the voters and their addresses in the quorum; "" for an unknown address."""
    if view is None:
        return dict.fromkeys(sorted(configured), "")
    return {int(one["id"]): str(one["address"]) for one in view["quorum"]["voters"]}


def describe_quorum(voters: Collection[int], views: Mapping[int, View]) -> dict[str, Any]:
    """Return the voters that answer, and whether they are a majority.

    `replaced`: nodes whose directory id differs from the voter's: they have no vote.
    """
    best_id = best_view(views)
    named = () if best_id is None else views[best_id]["quorum"]["voters"]
    directories = {int(one["id"]): one.get("directory_id") for one in named}
    own = {node_id: view["quorum"].get("directory_id") for node_id, view in views.items()}
    replaced = sorted(  # an older release sends no directory id
        node_id
        for node_id in voters
        if None not in {directories.get(node_id), own.get(node_id)}
        and directories[node_id] != own[node_id]
    )
    answering = sorted(node_id for node_id in voters if node_id in views.keys() - replaced)
    return {
        "voters": sorted(voters),
        "answering": answering,
        "replaced": replaced,
        "has_majority": 2 * len(answering) > len(voters),
        "view_of": best_id,
    }


def active_controller(quorum: Mapping[str, Any], views: Mapping[int, View]) -> int | None:
    """Return the node that is the active controller in its own view; None: there is none."""
    if not quorum["has_majority"]:
        return None
    active = [node for node, view in views.items() if view["quorum"]["is_active_controller"]]
    return max(active, key=lambda node: int(views[node]["quorum"]["leader_epoch"]), default=None)


def describe_partitions(
    topics: Mapping[str, Any], states: Mapping[int, NodeState]
) -> dict[str, int]:
    """Count all partitions, and the impaired ones. Nodes that are not in `states` count as up."""
    counts = {"total": 0, "fewer_in_sync": 0, "without_leader": 0, "leader_not_answering": 0}
    for partition in _partitions(topics):
        counts["total"] += 1
        counts["fewer_in_sync"] += len(partition["isr"]) < len(partition["replicas"])
        counts["without_leader"] += partition["leader"] < 0
        counts["leader_not_answering"] += leader_lack(partition, states) is not None
    return counts


def leader_lack(partition: Mapping[str, Any], states: Mapping[int, NodeState]) -> str | None:
    """Return the problem of the leader's node: "dead", "paused", "no answer"; None: it is up."""
    state = states.get(partition["leader"], NodeState.RUNNING)
    if state.is_dead:
        return "dead"
    return None if state is NodeState.RUNNING else state.value


def _partitions(topics: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for topic in topics.values():
        partitions: Sequence[Mapping[str, Any]] = topic["partitions"]
        yield from partitions

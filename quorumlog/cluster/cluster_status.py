"""The status of a cluster, from the states of its processes and the answers of its nodes.

A node answers with its own view of the cluster. Without a majority of the voters that view is the
past: it still names leaders and a controller that are dead. So each node is shown in the state that
its process has, and a controller only if it answers and a majority does.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

View = Mapping[str, Any]
"""What a node answers to GET /api/v1/status."""


class NodeState(Enum):
    """The state of a node, by its process."""

    RUNNING = "running"  # and it answers
    NO_ANSWER = "no answer"  # its process runs
    PAUSED = "paused"  # by SIGSTOP
    STOPPED = "stopped"  # it ended with status 0
    EXITED = "exited"  # it ended with another status
    KILLED = "killed"  # it ended without a status: SIGKILL, or a loss of power
    NOT_STARTED = "not started"

    @property
    def is_dead(self) -> bool:
        """True if there is no process."""
        return self not in {NodeState.RUNNING, NodeState.NO_ANSWER, NodeState.PAUSED}


def best_view(views: Mapping[int, View]) -> int | None:
    """Return the id of the node that has seen most of the metadata log; None: no node answers."""
    return max(views, key=lambda node_id: int(views[node_id]["metadata_offset"]), default=None)


def voters_of(view: View | None, configured: Collection[int]) -> dict[int, str]:
    """Return the voters and the addresses that the quorum has for them; "": not known."""
    if view is None:
        return dict.fromkeys(sorted(configured), "")
    return {int(one["id"]): str(one["address"]) for one in view["quorum"]["voters"]}


def describe_quorum(voters: Collection[int], views: Mapping[int, View]) -> dict[str, Any]:
    """Return which voters answer, and whether they are a majority.

    `replaced`: nodes that answer with another directory than the voters name: they have no vote.
    """
    best_id = best_view(views)
    named = () if best_id is None else views[best_id]["quorum"]["voters"]
    directories = {int(one["id"]): one.get("directory_id") for one in named}
    own = {node_id: view["quorum"].get("directory_id") for node_id, view in views.items()}
    replaced = sorted(  # an older release names no directory
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
    """Return the node that is the active controller by its own answer; None: there is none now."""
    if not quorum["has_majority"]:
        return None
    active = [node for node, view in views.items() if view["quorum"]["is_active_controller"]]
    return max(active, key=lambda node: int(views[node]["quorum"]["leader_epoch"]), default=None)


def describe_partitions(
    topics: Mapping[str, Any], states: Mapping[int, NodeState]
) -> dict[str, int]:
    """Count the partitions, and those that lack something. A node that is not ours counts as up."""
    counts = {"total": 0, "fewer_in_sync": 0, "without_leader": 0, "leader_not_answering": 0}
    for partition in _partitions(topics):
        counts["total"] += 1
        counts["fewer_in_sync"] += len(partition["isr"]) < len(partition["replicas"])
        counts["without_leader"] += partition["leader"] < 0
        counts["leader_not_answering"] += leader_lack(partition, states) is not None
    return counts


def leader_lack(partition: Mapping[str, Any], states: Mapping[int, NodeState]) -> str | None:
    """Return what is wrong with the leader's node: "dead", "paused", "no answer"; None: nothing."""
    state = states.get(partition["leader"], NodeState.RUNNING)
    if state.is_dead:
        return "dead"
    return None if state is NodeState.RUNNING else state.value


def _partitions(topics: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    for topic in topics.values():
        partitions: Sequence[Mapping[str, Any]] = topic["partitions"]
        yield from partitions

"""`quorumlog node kill | stop | start | pause | resume | unregister`: one node of a cluster."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from quorumlog.cli.connect import Cluster, cluster_command
from quorumlog.cli.options import DEFAULT_DIR, Dir, Json, NodeId, command_group
from quorumlog.cli.output import cluster_errors, outcome, say
from quorumlog.cluster import LocalCluster

app = command_group("Kill, pause, stop, start or unregister one node of a cluster.")


class _Action(NamedTuple):
    """An action on a node. `done`: the first word of the command's output."""

    act: Callable[[LocalCluster, int], object]
    done: str
    help: str


_ACTIONS: Final = {
    "kill": _Action(LocalCluster.kill, "killed", "Kill a node (SIGKILL)."),
    "stop": _Action(partial(LocalCluster.stop_node, say=say), "stopped", "Stop a node cleanly."),
    "start": _Action(
        partial(LocalCluster.start_node, say=say),
        "started",
        "Start a node again.\n\n"
        "Returns when the node is unfenced. The node runs until `quorumlog down`.",
    ),
    "pause": _Action(
        LocalCluster.pause,
        "paused",
        "Freeze a node (SIGSTOP).\n\nIts connections stay open; it sends no responses.",
    ),
    "resume": _Action(LocalCluster.resume, "resumed", "Resume a paused node (SIGCONT)."),
}


def _add(name: str, action: _Action) -> None:
    def command(node_id: NodeId, directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
        with cluster_errors():
            cluster = LocalCluster.open(directory, detached=True)
            action.act(cluster, node_id)
            pid = cluster.pid(node_id)
        done = {"dir": str(cluster.directory.resolve()), "node": node_id, "pid": pid}
        outcome(done, f"{action.done} node {node_id}", json=json)

    app.command(name, help=action.help)(command)


for _name, _action in _ACTIONS.items():
    _add(_name, _action)


@cluster_command(app)
def unregister(cluster: Cluster, node_id: NodeId) -> None:
    """Unregister a broker that will not come back.

    Stop the broker first. The cluster refuses if a partition has no other replica known to be
    complete. Assignments still name the broker: `reassign` moves its partitions.

    \b
    Example:
      quorumlog node unregister 3
    """
    cluster.ask(lambda admin: admin.unregister_broker(node_id))
    cluster.outcome({"node": node_id, "unregistered": True}, f"unregistered node {node_id}")

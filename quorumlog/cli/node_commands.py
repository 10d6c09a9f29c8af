"""`quorumlog node kill | stop | start | pause | resume`: one node of a cluster."""

from collections.abc import Callable

import typer

from quorumlog.cli.options import DEFAULT_DIR, Dir, Json, NodeId
from quorumlog.cli.output import cluster_errors, data, document
from quorumlog.cluster import LocalCluster

app = typer.Typer(
    help="Do something to one node of a cluster.",
    no_args_is_help=True,
    subcommand_metavar="COMMAND",
)


def _do(
    node_id: int,
    directory: Dir,
    json: Json,
    done: str,
    act: Callable[[LocalCluster, int], object],
) -> None:
    with cluster_errors():
        cluster = LocalCluster.open(directory, detached=True)
        act(cluster, node_id)
        pid = cluster.pid(node_id)
    if json:
        document({"dir": str(cluster.directory.resolve()), "node": node_id, "pid": pid})
    else:
        data(f"{done} node {node_id}")


@app.command()
def kill(node_id: NodeId, directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Kill a node (SIGKILL)."""
    _do(node_id, directory, json, "killed", LocalCluster.kill)


@app.command()
def stop(node_id: NodeId, directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Stop a node cleanly."""
    _do(node_id, directory, json, "stopped", LocalCluster.stop_node)


@app.command()
def start(node_id: NodeId, directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Start a node again.

    Returns when it is unfenced. The node runs on until `quorumlog down`.
    """
    _do(node_id, directory, json, "started", LocalCluster.start_node)


@app.command()
def pause(node_id: NodeId, directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Freeze a node (SIGSTOP).

    Its connections stay open and nothing answers.
    """
    _do(node_id, directory, json, "paused", LocalCluster.pause)


@app.command()
def resume(node_id: NodeId, directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Let a paused node go on (SIGCONT)."""
    _do(node_id, directory, json, "resumed", LocalCluster.resume)

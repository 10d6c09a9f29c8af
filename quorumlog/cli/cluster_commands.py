"""`quorumlog up | down | status | node`: a cluster of this machine."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final

import typer

from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    data,
    document,
    fail,
    one_line_errors,
    parse_settings,
    say,
)
from quorumlog.cluster import ClusterError, LocalCluster

DEFAULT_DIR: Final = Path("quorumlog-data")
_PORT: Final = 9092
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: the terminal is gone

Dir = Annotated[Path, typer.Option("--dir", help="The directory of the cluster.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]

node_app = typer.Typer(help="Do something to one node of a cluster.", no_args_is_help=True)


def up(
    directory: Dir = DEFAULT_DIR,
    nodes: Annotated[
        int | None, typer.Option(help="How many nodes, each broker and controller (3).")
    ] = None,
    controllers: Annotated[
        int | None, typer.Option(help="Nodes that are controllers only.")
    ] = None,
    brokers: Annotated[int | None, typer.Option(help="Nodes that are brokers only.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Kafka port of the first node (9092); 0 takes free ports.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return; stop it with `down`.")] = False,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="name=value, by Kafka's names; repeat.")
    ] = None,
    defaults: Annotated[
        str,
        typer.Option(
            help="Of a new cluster. fast: short timeouts, quick failover; kafka: its own."
        ),
    ] = "fast",
    json: Json = False,
) -> None:
    """Start a cluster, new or from what DIR holds; print it once it is ready.

    Without --detach it runs until Ctrl-C, which stops it cleanly.
    """
    with one_line_errors(ClusterError, OSError):
        cluster = LocalCluster(
            directory,
            nodes=3 if nodes is None else nodes,
            controllers=controllers,
            brokers=brokers,
            port=_PORT if port is None else port,
            config=parse_settings(config or []),
            defaults=defaults,
        )
        _refuse_another(cluster, nodes=nodes, controllers=controllers, brokers=brokers, port=port)
        running = [node.id for node in cluster.nodes if cluster.pid(node.id) is not None]
        if running and not detach:
            fail(
                f"node {', '.join(map(str, running))} of the cluster in {directory} runs already; "
                "with --detach the missing ones are started beside it, `down` stops it"
            )
        _at_an_ending_signal(signal.default_int_handler)  # what was started here is stopped again
        ready_s = cluster.start()
    described = _describe(cluster, ready_s)
    if json:
        document(described)
    else:
        _print_ready(described, ready_s)
    if detach:
        say(f"stop it with: quorumlog down --dir {directory}")
        return
    _run_until_interrupted(cluster)


def _refuse_another(
    cluster: LocalCluster,
    *,
    nodes: int | None,
    controllers: int | None,
    brokers: int | None,
    port: int | None,
) -> None:
    """End with a usage error if the directory holds a cluster other than the one asked for."""
    apart = [node.roles[0] for node in cluster.nodes if len(node.roles) == 1]
    held = {
        "--nodes": (nodes, len(cluster.nodes)),
        "--controllers": (controllers, apart.count("controller")),
        "--brokers": (brokers, apart.count("broker")),
        "--port": (port or None, int(cluster.nodes[0].kafka.rpartition(":")[2])),
    }
    for option, (asked, found) in held.items():
        if asked not in {None, found}:
            fail(
                f"{cluster.directory} holds a cluster with {option} {found}, not {asked}; "
                f"leave {option} out, or choose another --dir",
                EXIT_USAGE,
            )


def _describe(cluster: LocalCluster, ready_s: float) -> dict[str, Any]:
    """Return what `up --json` prints; its keys are stable."""
    return {
        "dir": str(cluster.directory),
        "cluster_id": cluster.spec.cluster_id,
        "bootstrap": cluster.bootstrap,
        "ready_ms": round(ready_s * 1000),
        "nodes": [
            {
                "id": node.id,
                "roles": list(node.roles),
                "kafka": node.kafka,
                "control": node.control,
                "pid": cluster.pid(node.id),
            }
            for node in cluster.nodes
        ],
    }


def _print_ready(described: dict[str, Any], ready_s: float) -> None:
    nodes = described["nodes"]
    data(f"{len(nodes)} nodes ready in {ready_s:.2f} s   bootstrap {described['bootstrap']}")
    for node in nodes:
        data(
            f"  node {node['id']}  {'+'.join(node['roles']):17}  kafka {node['kafka']}"
            f"  control {node['control']}  pid {node['pid']}"
        )


def _at_an_ending_signal(handler: Callable[[int, FrameType | None], object]) -> None:
    """Handle Ctrl-C and its like, but for those that are ignored already: by nohup, say."""
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _run_until_interrupted(cluster: LocalCluster) -> None:
    stop = threading.Event()
    _at_an_ending_signal(lambda *_: stop.set())
    say("press Ctrl-C to stop the cluster")
    stop.wait()
    say("stopping ...")
    cluster.stop()


def down(directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Stop a cluster cleanly; its data stays in DIR."""
    with one_line_errors(ClusterError, OSError):
        cluster = LocalCluster.open(directory)
        running = [node.id for node in cluster.nodes if cluster.pid(node.id) is not None]
        cluster.stop()
    if json:
        document({"dir": str(directory), "stopped": running})
    else:
        data(f"stopped {len(running)} of {len(cluster.nodes)} nodes")


def status(directory: Dir = DEFAULT_DIR, json: Json = False) -> None:
    """Show who runs, who is the active controller, and the state of every partition."""
    with one_line_errors(ClusterError, OSError):
        described = LocalCluster.open(directory).status()
    if json:
        document(described)
    else:
        _print_status(described)
    if not any(node["answers"] for node in described["nodes"]):
        raise typer.Exit(EXIT_FAILED)


def _print_status(described: dict[str, Any]) -> None:
    data(f"cluster {described['cluster_id']}   active controller {described['controller_id']}")
    for node in described["nodes"]:
        state = "stopped"
        if node["pid"] is not None:
            state = f"pid {node['pid']}" if node["answers"] else f"pid {node['pid']}, no answer"
            if node["fenced"]:
                state += ", fenced"
        data(f"  node {node['id']}  {'+'.join(node['roles']):17}  {node['kafka']:21}  {state}")
    for name, topic in sorted(described["topics"].items()):
        data(f"  topic {name}")
        for index, partition in enumerate(topic["partitions"]):
            data(
                f"    {index:>4}  leader {partition['leader']}  epoch {partition['leader_epoch']}"
                f"  isr {partition['isr']}  replicas {partition['replicas']}"
            )


NodeId = Annotated[int, typer.Argument(metavar="ID", help="The node's id.")]


@node_app.command()
def kill(node_id: NodeId, directory: Dir = DEFAULT_DIR) -> None:
    """Kill a node (SIGKILL)."""
    with one_line_errors(ClusterError, OSError):
        LocalCluster.open(directory).kill(node_id)
    data(f"killed node {node_id}")


@node_app.command()
def stop(node_id: NodeId, directory: Dir = DEFAULT_DIR) -> None:
    """Stop a node cleanly."""
    with one_line_errors(ClusterError, OSError):
        LocalCluster.open(directory).stop_node(node_id)
    data(f"stopped node {node_id}")


@node_app.command()
def start(node_id: NodeId, directory: Dir = DEFAULT_DIR) -> None:
    """Start a node that was killed or stopped; return when it is unfenced."""
    with one_line_errors(ClusterError, OSError):
        LocalCluster.open(directory).start_node(node_id)
    data(f"started node {node_id}")


@node_app.command()
def pause(node_id: NodeId, directory: Dir = DEFAULT_DIR) -> None:
    """Freeze a node (SIGSTOP): its connections stay open and nothing answers."""
    with one_line_errors(ClusterError, OSError):
        LocalCluster.open(directory).pause(node_id)
    data(f"paused node {node_id}")


@node_app.command()
def resume(node_id: NodeId, directory: Dir = DEFAULT_DIR) -> None:
    """Let a paused node go on (SIGCONT)."""
    with one_line_errors(ClusterError, OSError):
        LocalCluster.open(directory).resume(node_id)
    data(f"resumed node {node_id}")

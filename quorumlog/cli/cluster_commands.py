"""`quorumlog up | down | status`: clusters on this machine."""

import os
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, Literal, TypedDict

import typer

from quorumlog.addresses import host_and_port
from quorumlog.cli import listener_options, security_options
from quorumlog.cli.options import (
    DEFAULT_DIR,
    Brokers,
    Controllers,
    Dir,
    Internal,
    Json,
    NodeSettings,
    Racks,
)
from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_NO_QUORUM,
    EXIT_USAGE,
    cluster_errors,
    data,
    document,
    fail,
    outcome,
    parse_settings,
    say,
)
from quorumlog.cli.save_command import From, unpacked
from quorumlog.cli.status_lines import rack_column, status_lines
from quorumlog.cluster import LocalCluster, running_clusters
from quorumlog.cluster.layout import CLUSTER_FILE, CONTROL_PORT_STEP, FIRST_ID
from quorumlog.cluster.shape import read_racks
from quorumlog.settings.releases import NEWEST

_NODES: Final = 3
_PORT: Final = 9092
_INPUT_BYTES: Final = 4096
_LOOK_S: Final = 0.5
_NONE_RUNS: Final = "no cluster runs"
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: the terminal is gone

Nodes = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help=f"How many nodes, each broker and controller. Default: {_NODES}."
    ),
]
One = Annotated[
    bool,
    typer.Option("--one", help="One node, with one replica of everything: the same as --nodes 1."),
]
AsVersion = Annotated[
    str | None,
    typer.Option(
        metavar="X.Y",
        help="A release of Apache Kafka: clients get no API or version that it lacks. It is "
        f"recorded; {NEWEST} ends it.",
    ),
]
SeedFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="YAML or JSON with topics, records, groups, users, ACLs and quotas that the cluster "
        "gets before it is ready, unless it has them.",
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        help="Kafka port of the first node; the next nodes count up. Each control port is "
        f"{CONTROL_PORT_STEP} above; above 32767, a connection of this machine may have it. "
        f"0: any free ports. Default: {_PORT}.",
    ),
]
FirstId = Annotated[
    int | None,
    typer.Option(
        metavar="ID",
        min=0,
        help="Id of the first node; the next nodes count up. Apache Kafka's begin with 0. "
        f"Default: {FIRST_ID}.",
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Return once the cluster is ready; `down` stops it.")
]
Defaults = Annotated[
    Literal["fast", "kafka", "safe"],
    typer.Option(
        help="Settings of a new cluster. fast: short timeouts, for quick failover; kafka: Kafka's "
        "defaults; safe: fast, with three replicas and min.insync.replicas=2."
    ),
]
Control = Annotated[
    str | None,
    typer.Option(
        metavar="PORT",
        help="Start a control server, too: `quorumlog nemesis`, and HTTP for tests in any "
        "language. HOST:PORT serves other machines; 0: any free port. Clients then connect to "
        "forwarders on free ports, which the command prints, not to --port.",
    ),
]
Breakable = Annotated[
    bool,
    typer.Option(
        "--breakable",
        help="With --control: disks and clocks of nodes can be broken, too (`quorumlog nemesis "
        "inflict disk-full`). Needs Linux with glibc and a C compiler.",
    ),
]
UntilStdinCloses = Annotated[
    bool,
    typer.Option(
        "--until-stdin-closes",
        help="Stop the cluster when standard input ends, as when the test run that started this "
        "command is dead.",
    ),
]
All = Annotated[
    bool, typer.Option("--all", help="All clusters of this user on this machine, in any directory.")
]


class _Places(TypedDict):
    """The options of `up` on addresses."""

    port: int
    host: str
    advertised: str | None
    listeners: Sequence[str]


def _places(
    port: int | None, host: str | None, advertised: str | None, listeners: Sequence[str]
) -> _Places:
    return {
        "port": _PORT if port is None else port,
        "host": "127.0.0.1" if host is None else host,
        "advertised": advertised,
        "listeners": listeners,
    }


class _Shape(TypedDict):
    """The options of `up` on the nodes and their racks."""

    nodes: int
    controllers: int | None
    brokers: int | None
    racks: Sequence[str]


def _shape(
    nodes: int | None, controllers: int | None, brokers: int | None, racks: str | None
) -> _Shape:
    return {
        "nodes": _NODES if nodes is None else nodes,
        "controllers": controllers,
        "brokers": brokers,
        "racks": read_racks(racks),
    }


def up(
    directory: Dir = DEFAULT_DIR,
    nodes: Nodes = None,
    controllers: Controllers = None,
    brokers: Brokers = None,
    racks: Racks = None,
    first_id: FirstId = None,
    port: Port = None,
    host: listener_options.Host = None,
    advertised: listener_options.Advertised = None,
    listener: listener_options.Listeners = None,
    detach: Detach = False,
    config: NodeSettings = None,
    defaults: Defaults = "fast",
    one: One = False,
    as_version: AsVersion = None,
    seed: SeedFile = None,
    source: From = None,
    control: Control = None,
    breakable: Breakable = False,
    until_stdin_closes: UntilStdinCloses = False,
    tls: security_options.Tls = False,
    sasl: security_options.Sasl = None,
    user: security_options.User = None,
    users: security_options.Users = None,
    acls: security_options.Acls = False,
    super_user: security_options.SuperUser = None,
    json: Json = False,
) -> None:
    """Start a cluster.

    Makes a new cluster in DIR, or starts the existing cluster with its data, and prints the
    addresses when it is ready. Without --detach, the cluster runs until Ctrl-C stops it cleanly.
    """
    _refuse_pairs(detach and until_stdin_closes, breakable and control is None)
    nodes = _only_one(nodes, controllers, brokers) if one else nodes
    places = _places(port, host, advertised, listener or ())
    protection = security_options.security_of(tls, sasl, user, users, acls, super_user)
    with cluster_errors(), unpacked(source, directory, **places):
        cluster = LocalCluster(
            directory,
            **_shape(nodes, controllers, brokers, racks),
            first_id=FIRST_ID if first_id is None else first_id,
            **places,
            config=parse_settings(config or []),
            defaults=defaults,
            detached=detach,
            control=control or False,
            breakable=breakable,
            as_version=as_version,
            seed=seed,
            **protection,
        )
        _refuse_another(cluster, nodes, controllers, brokers, first_id, port, host)
        _warn(cluster, may_run=detach, has_new_settings=bool(config))
        _announce(cluster, _start(cluster), directory, json=json)
    if not detach:
        _run_until_interrupted(cluster, or_end_of_input=until_stdin_closes)


def _warn(cluster: LocalCluster, *, may_run: bool, has_new_settings: bool) -> None:
    """Print settings without effect: unknown hosts, ignored names, those of running nodes.

    Ends the command if a node runs and none may.
    """
    listener_options.warn_of_unknown_hosts(cluster)
    running = ", ".join(map(str, cluster.running()))
    if running and not may_run:
        fail(
            f"node {running} of the cluster in {cluster.directory} runs already; "
            "with --detach the missing ones are started beside it, `down` stops it"
        )
    if running and has_new_settings:
        say(f"quorumlog: node {running} has new settings once restarted")
    if ignored := cluster.check():
        say(f"quorumlog: settings without effect (docs/configuration.md): {', '.join(ignored)}")


def _refuse_pairs(is_detached_until_stdin_closes: bool, is_breakable_alone: bool) -> None:
    if is_detached_until_stdin_closes:
        fail("--until-stdin-closes: with --detach the cluster runs until `down`", EXIT_USAGE)
    if is_breakable_alone:
        fail("--breakable: give --control, too: its server breaks the disks", EXIT_USAGE)


def _only_one(*others: int | None) -> int:
    """Return the number of nodes of --one. Ends with a usage error beside other counts."""
    if any(other is not None for other in others):
        fail("--one is --nodes 1: leave --nodes, --controllers and --brokers out", EXIT_USAGE)
    return 1


def _start(cluster: LocalCluster) -> float:
    """Start the cluster. On an interrupt, stop the started nodes and end the command."""
    _at_an_ending_signal(signal.default_int_handler)
    try:
        return cluster.start(say=say)
    except KeyboardInterrupt:
        fail("interrupted while starting; the started nodes are stopped", EXIT_INTERRUPTED)


def _refuse_another(
    cluster: LocalCluster,
    nodes: int | None,
    controllers: int | None,
    brokers: int | None,
    first_id: int | None,
    port: int | None,
    host: str | None,
) -> None:
    """End with a usage error if the directory's cluster has another option than required."""
    apart = [node.roles[0] for node in cluster.nodes if len(node.roles) == 1]
    found_host, first_port = host_and_port(cluster.nodes[0].kafka)
    for option, asked, found in (
        ("--nodes", nodes, len(cluster.nodes)),
        ("--controllers", controllers, apart.count("controller")),
        ("--brokers", brokers, apart.count("broker")),
        ("--first-id", first_id, cluster.nodes[0].id),
        ("--port", port or None, first_port),
        ("--host", host and host.strip("[]"), found_host),
    ):
        if asked not in {None, found}:
            fail(
                f"the cluster in {cluster.directory} has {option} {found}, not {asked}; "
                f"leave {option} out, or choose another --dir",
                EXIT_USAGE,
            )


def _announce(cluster: LocalCluster, ready_s: float, directory: Path, *, json: bool) -> None:
    """Print the addresses. A cluster that was to run in the foreground is stopped on an error."""
    described = _describe(cluster, ready_s)
    try:
        if json:
            document(described)
        else:
            _print_ready(described, ready_s)
            security_options.print_security(cluster)
    except BaseException:  # as of `up | head`
        if not cluster.is_detached:
            cluster.stop()
        raise
    if cluster.is_detached:
        say(f"stop it with: quorumlog down --dir {directory}")


def _describe(cluster: LocalCluster, ready_s: float) -> dict[str, Any]:
    """Return the document that `up --json` prints; its keys are stable."""
    server = cluster.control
    seeded = {} if cluster.seeded is None else {"seed": asdict(cluster.seeded)}
    return {
        "dir": str(cluster.directory.resolve()),
        "cluster_id": cluster.spec.cluster_id,
        "bootstrap": cluster.bootstrap,
        "ready_ms": round(ready_s * 1000),
        "nodes": [cluster.describe_node(node) for node in cluster.nodes],
        "control": server and {"url": server.url, "token": server.token},
        "security": security_options.describe(cluster),
        **seeded,
    }


def _print_ready(described: dict[str, Any], ready_s: float) -> None:
    nodes = described["nodes"]
    width = max(len(node["kafka"] or "") for node in nodes)
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    data(f"{count} ready in {ready_s:.2f} s   bootstrap {described['bootstrap']}")
    for node in nodes:
        data(
            f"  node {node['id']}{rack_column(node, nodes)}  {'+'.join(node['roles']):17}"
            f"  kafka {node['kafka'] or '-':{width}}"
            f"  control {node['control']}  pid {node['pid']}"
        )
        for one in node["listeners"]:
            data(f"          {one['name']}  {one['advertised']}  bound to {one['bind']}")
    if (server := described["control"]) is not None:
        data(f"  control server {server['url']}  token {server['token']}")


def _at_an_ending_signal(handler: Callable[[int, FrameType | None], object]) -> None:
    """Handle the signals that end the command, except those that are ignored (after nohup)."""
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _run_until_interrupted(cluster: LocalCluster, *, or_end_of_input: bool) -> None:
    stop = threading.Event()
    if or_end_of_input:
        threading.Thread(target=_await_end_of_input, args=(stop.set,), daemon=True).start()
    _at_an_ending_signal(lambda *_: stop.set())
    say("press Ctrl-C to stop the cluster")
    ended = frozenset[int]()
    while not stop.wait(_LOOK_S):
        ended = _report_ended(cluster, ended)
    say("stopping ...")
    with cluster_errors():
        cluster.stop(say=say)


def _report_ended(cluster: LocalCluster, reported: frozenset[int]) -> frozenset[int]:
    """Print the nodes that have ended since the last report; return all ended nodes."""
    ended = frozenset(node.id for node in cluster.nodes if cluster.exit_status(node.id) is not None)
    for node_id in sorted(ended - reported):
        if cluster.pid(node_id) is None:  # else another command has started it again
            again = f"quorumlog node start {node_id} --dir {cluster.directory}"
            say(f"{cluster.last_words(node_id)}; start it again with: {again}")
    return ended


def _await_end_of_input(then: Callable[[], object]) -> None:
    with suppress(OSError):  # it was closed from the start
        while os.read(0, _INPUT_BYTES):
            pass
    then()


def down(directory: Dir = DEFAULT_DIR, everything: All = False, json: Json = False) -> None:
    """Stop a cluster cleanly; its data stays.

    Nodes that stop making progress are killed.

    With --all, stop every cluster of this user, also clusters that another program runs, and
    clusters whose directory was removed.
    """
    if everything:
        _stop(running_clusters.running(), json=json)
        return
    left = running_clusters.running(directory)
    if not (directory / CLUSTER_FILE).exists() and left:  # the directory was removed
        _stop(left, json=json)
        return
    with cluster_errors():
        cluster = LocalCluster.open(directory)
        running = cluster.running()
        killed = cluster.stop(say=say)
    stopped = [node_id for node_id in running if node_id not in killed]
    done = {"dir": str(cluster.directory.resolve()), "stopped": stopped, "killed": list(killed)}
    line = f"stopped {len(stopped)} of {len(cluster.nodes)} nodes{_and_killed(killed)}"
    outcome(done, line, json=json)


def _and_killed(killed: Collection[int]) -> str:
    return f", killed {len(killed)}" if killed else ""


def _stop(clusters: list[running_clusters.RunningCluster], *, json: bool) -> None:
    """Stop running clusters by their processes, and print which."""
    killed = {entry.pid for entry in running_clusters.stop(clusters, say)}
    described, lines = [], []
    for cluster in clusters:
        gone = [node.node_id for node in cluster.nodes if node.pid in killed]
        stopped = [node.node_id for node in cluster.nodes if node.pid not in killed]
        named = {"dir": str(cluster.directory), "cluster_id": cluster.cluster_id}
        described.append({**named, "stopped": stopped, "killed": gone})
        lines.append(f"stopped {len(stopped)} nodes of {cluster.directory}{_and_killed(gone)}")
    outcome({"clusters": described}, *(lines or [_NONE_RUNS]), json=json)


def status(
    directory: Dir = DEFAULT_DIR,
    everything: All = False,
    internal: Internal = False,
    json: Json = False,
) -> None:
    """Show the nodes, the active controller, and the state of every partition.

    Ends with status 3 if fewer than a majority of the voters answer; the output is then the last
    state of one node. Ends with status 1 if no node answers.

    With --all, list the running clusters of this user: directories and processes.
    """
    if everything:
        _show_all(running_clusters.running(), json=json)
        return
    with cluster_errors():
        cluster = LocalCluster.open(directory)
        described = cluster.status()
    if cluster.has_lost_control:
        say(
            "quorumlog: the control server of these nodes has ended, and with it their forwarders:"
            f" no connection reaches them; `quorumlog down --dir {directory}` stops them"
        )
    outcome(described, *status_lines(described, internal=internal), json=json)
    if not any(node["answers"] for node in described["nodes"]):
        raise typer.Exit(EXIT_FAILED)
    if not described["quorum"]["has_majority"]:
        raise typer.Exit(EXIT_NO_QUORUM)


def _show_all(clusters: list[running_clusters.RunningCluster], *, json: bool) -> None:
    described = [
        {
            "dir": str(cluster.directory),
            "dir_exists": cluster.directory.exists(),
            "cluster_id": cluster.cluster_id,
            "bootstrap": cluster.bootstrap,
            "nodes": [{"id": node.node_id, "pid": node.pid} for node in cluster.nodes],
            "control_server": cluster.control_server and {"pid": cluster.control_server.pid},
        }
        for cluster in clusters
    ]
    lines = []
    for cluster in clusters:
        gone = "" if cluster.directory.exists() else "  (the directory is gone)"
        lines.append(f"{cluster.directory}{gone}")
        lines += [f"  node {one.node_id}  {one.kafka:21}  pid {one.pid}" for one in cluster.nodes]
        if (server := cluster.control_server) is not None:
            lines.append(f"  {server.name}  pid {server.pid}")
    outcome({"clusters": described}, *(lines or [_NONE_RUNS]), json=json)

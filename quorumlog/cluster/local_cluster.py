"""A whole cluster on this machine, one OS process per node, for tests, demos and chaos."""

import atexit
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from quorumlog.addresses import host_and_port
from quorumlog.cluster import cluster_status, layout, ports, registry, seeds, settings_check
from quorumlog.cluster.cluster_status import NodeState
from quorumlog.cluster.errors import ClusterError, InvalidArgument, NodeFailed
from quorumlog.cluster.forked import spawn_again, spawn_together
from quorumlog.cluster.layout import ClusterShape, ClusterSpec, NodeSpec
from quorumlog.cluster.processes import Launch, NodeProcess, Program
from quorumlog.cluster.running_clusters import STOP_TIMEOUT_S
from quorumlog.cluster.time_limit import Say, TimeLimit, say_nothing

if TYPE_CHECKING:
    from quorumlog.cluster.seeding import Seeded

READY_TIMEOUT_S: Final = 30.0  # without any progress
_STATUS_TIMEOUT_S: Final = 2.0


class LocalCluster:
    """Start, stop, kill and pause the nodes of one cluster directory.

    Use it as a context manager: `with LocalCluster(nodes=3) as cluster: ... cluster.bootstrap`.
    Without `directory` it has a temporary directory, which is removed at the end of the block.
    Its nodes end with this process, however that ends, unless they are `detached`.
    All methods block; all raise ClusterError with a line that gives the remedy, and InvalidArgument
    for invalid arguments.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        nodes: int = 3,
        controllers: int | None = None,
        brokers: int | None = None,
        first_id: int = layout.FIRST_ID,
        host: str = "127.0.0.1",
        port: int = 0,
        config: Mapping[str, str] | None = None,
        defaults: str = "fast",
        node_module: str = "quorumlog.node",
        detached: bool = False,
        as_version: str | None = None,
        seed: str | Path | Mapping[str, Any] | None = None,
    ) -> None:
        """Plan a new cluster, or open the cluster in `directory` (with its recorded nodes).

        `controllers` and `brokers`, given together, make nodes of one role each; without them,
        each of `nodes` has both roles. Ids count up from `first_id`. `config` has Kafka's names
        and texts; an empty text removes a recorded setting. `defaults` is "fast" or "kafka".
        `node_module` is run as the node's program: a mutant that breaks a rule tests the tests.
        `detached` nodes outlive this process. `as_version`, such as "3.9": clients get no API or
        version that this release of Apache Kafka lacks. `seed`: topics, records and more that
        `start` creates if they are missing, as a file or as its contents: `cluster.seed_file`.
        """
        config = {**(config or {}), **settings_check.release(as_version)}
        self._seed: Final = seeds.read(seed)
        self.seeded: Seeded | None = None  # after `start` with a seed
        temporary = not directory
        path = Path(directory).absolute() if directory else _temporary_path()
        self.directory: Final = path
        self._owner_pid: Final = os.getpid()
        self._program: Final = Program(module=node_module, detached=detached, temporary=temporary)
        self._failed: ClusterSpec | None = None  # an earlier plan, never ready: to be cleared
        self._is_planned_here = False  # a new cluster
        found = _found(path)
        if found is not None and (found.was_ready or self._is_used(found)):
            settings_check.require_kept(found.config, config or {})
            planned = found
        else:
            self._failed, self._is_planned_here = found, True
            if defaults not in {"fast", "kafka"}:
                raise InvalidArgument(f"--defaults {defaults}: it is fast or kafka")
            base = layout.FAST_DEFAULTS if defaults == "fast" else {}
            roles = ClusterShape(nodes, controllers, brokers).roles
            planned = layout.plan(roles, host=host, port=port, config=base, first_id=first_id)
        self._adopt(replace(planned, config=settings_check.laid_over(planned.config, config or {})))

    def _adopt(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self._processes = {node.id: self._process_of(spec, node) for node in spec.nodes}

    def _process_of(self, spec: ClusterSpec, node: NodeSpec) -> NodeProcess:
        shown = replace(node, kafka=spec.client_address(node))
        return NodeProcess(self.directory, spec.cluster_id, shown, self._program)

    def _is_used(self, spec: ClusterSpec) -> bool:
        """Return whether a cluster that was never ready holds data, or is being started."""
        return (
            layout.holds_partitions(self.directory, spec)
            or any(self._process_of(spec, node).pid is not None for node in spec.nodes)
            or any(entry.cluster_id == spec.cluster_id for entry in registry.running())
        )

    @classmethod
    def open(cls, directory: str | Path, *, detached: bool = False) -> Self:
        """Open a directory that must hold a cluster, ready or not."""
        found = layout.load(Path(directory))
        cluster = cls(directory, detached=detached)
        cluster._failed, cluster._is_planned_here = None, False
        cluster._adopt(found)
        return cluster

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of all brokers."""
        return self.spec.bootstrap

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes of the cluster, running or not."""
        return self.spec.nodes

    @property
    def is_new(self) -> bool:
        """Whether the directory holds no cluster that was ready before."""
        return not self.spec.was_ready

    def take_detours(self, detours: Mapping[int, Mapping[str, str]]) -> None:
        """Set unrecorded properties of single nodes, by id, before the start.

        They route connections through forwarders or namespaces, which end with this process.
        """
        self.spec = replace(self.spec, detours=detours)

    def launch_by(self, node_id: int, launch: Launch) -> None:
        """Launch the processes of a node by `launch` from now on; it is not recorded."""
        self._process(node_id).launch = launch

    def check(self) -> list[str]:
        """Check the settings by the nodes' own rules; return the names without effect, sorted.

        Raises InvalidArgument. No file is written.
        """
        return settings_check.check(self.directory, self.spec)

    def start(self, *, timeout_s: float = READY_TIMEOUT_S, say: Say = say_nothing) -> float:
        """Start every node that does not run; return the seconds until all were ready.

        Ready: every broker is unfenced and there is an active controller. The nodes started here
        are killed if one of them fails, if none makes progress for `timeout_s`, or on a signal. The
        settings are recorded once all nodes are ready. `say` receives the progress of a long start.
        Raises InvalidArgument, and ClusterError for a port in use, before any file is written.
        """
        started_s = time.monotonic()
        idle = [node for node in self.spec.nodes if self._processes[node.id].pid is None]
        self.check()
        for node in idle:
            self._require_ports(node)
        registry.running()  # removes leftovers of killed processes
        self._prepare(idle)
        limit = self._time_limit(timeout_s, [node.id for node in idle], say)
        try:
            spawn_together([self._processes[node.id] for node in idle], limit)
            for node in idle:
                self._processes[node.id].wait_ready(limit)
            self.spec = replace(self.spec, was_ready=True)
            layout.save(self.directory, self.spec)
            self.seeded = seeds.plant(self._seed, self.bootstrap, say)
        except BaseException:
            for node in idle:
                self._end(node.id, signal.SIGKILL)
            registry.running()  # removes their entries
            raise
        return time.monotonic() - started_s

    def _prepare(self, idle: list[NodeSpec]) -> None:
        """Write the files of the idle nodes; an existing cluster keeps its recorded settings."""
        if self._program.temporary and not self.directory.exists():
            self.directory.mkdir(mode=0o700)
            atexit.register(self._dispose)
        if self._failed is not None:
            layout.clear(self.directory, self._failed)
            self._failed = None
        if self._is_planned_here:
            layout.found(self.directory, self.spec)
        if self.is_new:
            layout.save(self.directory, self.spec)
        else:
            layout.write_properties(self.directory, self.spec, idle)

    def _require_ports(self, node: NodeSpec) -> None:
        """Raise ClusterError, with port and process, if a port of the node is in use."""
        kafka = self.spec.kafka_address(node)
        kafka_port, control_port = host_and_port(kafka)[1], host_and_port(node.control)[1]
        is_derived = control_port == kafka_port + layout.CONTROL_PORT_STEP
        derived = f", its Kafka port + {layout.CONTROL_PORT_STEP}" if is_derived else ""
        wanted = {node.control: f"control port{derived}"}
        if node.is_broker:
            wanted = {kafka: "Kafka port", **wanted}
        for address, what in wanted.items():
            found = ports.obstacle(*host_and_port(address))
            if found is not None:
                raise ClusterError(
                    f"{address} (node {node.id}, {what}): {found.reason}; "
                    f"{self._way_out(found.pid)}"
                )

    def _way_out(self, pid: int | None) -> str:
        """Return the remedy for a port that a process uses."""
        for entry in registry.running():
            if entry.pid == pid:
                return (
                    f"it is node {entry.node_id} of the cluster in {entry.directory}; "
                    f"`quorumlog down --dir {entry.directory}` stops that"
                )
        return "choose another --port" if self.is_new else "free it, then try again"

    def start_node(
        self,
        node_id: int,
        *,
        wait: bool = True,
        timeout_s: float = READY_TIMEOUT_S,
        say: Say = say_nothing,
    ) -> None:
        """Start one node again; with `wait`, return when it is unfenced.

        Raises NodeFailed if it ends, or makes no progress for `timeout_s`; it is not killed.
        """
        process, node = self._process(node_id), self.spec.node(node_id)
        if process.pid is None:
            self._require_ports(node)
            layout.write_properties(self.directory, self.spec, [node])
        limit = self._time_limit(timeout_s, [node_id], say)
        spawn_again(process, self._processes.values(), limit, report_ready=wait)
        if wait:
            process.wait_ready(limit)

    def kill(self, *node_ids: int) -> None:
        """SIGKILL: the processes are gone when this returns."""
        for node_id in node_ids:
            self._process(node_id).signal(signal.SIGKILL)
        for node_id in node_ids:
            self._process(node_id).wait_ended(self._time_limit(STOP_TIMEOUT_S, [node_id]))

    def stop_node(self, node_id: int, *, say: Say = say_nothing) -> None:
        """Stop one node cleanly: it hands over its leaderships first.

        Raises NodeFailed if it makes no progress for STOP_TIMEOUT_S; it is not killed.
        """
        limit = self._time_limit(STOP_TIMEOUT_S, [node_id], say)
        self._process(node_id).signal(signal.SIGTERM)
        if not self._process(node_id).wait_ended(limit):
            raise NodeFailed(f"node {node_id} does not stop: it {limit.lack(node_id)}")

    def wipe_node(self, node_id: int) -> None:
        """Empty the log directory of a node that does not run: it starts as with a new disk."""
        if self.pid(node_id) is not None:
            raise ClusterError(f"node {node_id} runs: its log directory is not emptied")
        layout.wipe(self.directory, node_id)

    def pause(self, node_id: int) -> None:
        """SIGSTOP: its connections stay open, without responses."""
        self._process(node_id).signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        self._process(node_id).signal(signal.SIGCONT)

    def stop(self, *, say: Say = say_nothing) -> tuple[int, ...]:
        """Stop all nodes cleanly, at once; kill the rest after STOP_TIMEOUT_S without progress.

        Returns the ids of the killed nodes. A node that ends by itself meanwhile counts as stopped.
        `say` receives the progress of a long stop, and the killed nodes.
        """
        running = self.running()
        limit = self._time_limit(STOP_TIMEOUT_S, running, say)
        for node_id in running:
            # A paused process does not act on SIGTERM.
            self._process(node_id).signal_if_running(signal.SIGCONT)
            self._process(node_id).signal_if_running(signal.SIGTERM)
        killed = []
        for node_id in running:
            if not self._process(node_id).wait_ended(limit):
                self._end(node_id, signal.SIGKILL)
                limit.say_killed(node_id)
                killed.append(node_id)
        registry.forget(self.spec.cluster_id)
        return tuple(killed)

    def _end(self, node_id: int, number: signal.Signals) -> None:
        if self._process(node_id).signal_if_running(number):
            self._process(node_id).wait_ended(self._time_limit(STOP_TIMEOUT_S, [node_id]))

    def _time_limit(
        self, timeout_s: float, node_ids: Iterable[int], say: Say = say_nothing
    ) -> TimeLimit:
        files = {node_id: layout.pid_file(self.directory, node_id) for node_id in node_ids}
        return TimeLimit(timeout_s, files, say)

    def _dispose(self) -> None:
        """Kill the nodes of a temporary cluster and remove it; no effect in a forked child."""
        atexit.unregister(self._dispose)
        if os.getpid() == self._owner_pid:
            for node in self.spec.nodes:
                self._end(node.id, signal.SIGKILL)
            registry.forget(self.spec.cluster_id)
            registry.remove_temporary(self.directory)

    def pid(self, node_id: int) -> int | None:
        """Return the node's process id, or None if it does not run."""
        return self._process(node_id).pid

    def exit_status(self, node_id: int) -> int | None:
        """Return the exit status of a node started here, below 0 by a signal; None: it runs."""
        return self._process(node_id).exit_status

    def last_words(self, node_id: int) -> str:
        """Return how a node ended, with the last line of its output.

        Raises ClusterError if it runs.
        """
        return self._process(node_id).last_words()

    def _process(self, node_id: int) -> NodeProcess:
        self.spec.node(node_id)
        return self._processes[node_id]

    def node_status(self, node_id: int) -> dict[str, Any] | None:
        """Return a node's view of itself and the cluster (GET /api/v1/status); None: no answer."""
        return _status_at(self.spec.control_address(self.spec.node(node_id)))

    def state(self, node_id: int) -> NodeState:
        """Return the state of a node's process; NO_ANSWER if it runs: no request is sent."""
        return self._process(node_id).state()

    def _views(self, addresses: Mapping[int, str]) -> dict[int, dict[str, Any]]:
        """Request the views of nodes, all at once; nodes without an answer are left out."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
            answers = dict(zip(addresses, pool.map(_status_at, addresses.values()), strict=True))
        return {node_id: answer for node_id, answer in answers.items() if answer is not None}

    def status(self) -> dict[str, Any]:
        """Describe the nodes, and the cluster in the view of the node with the newest metadata.

        `quorum`: the voters that answer, whether they are a majority, and the node of the view.
        Without a majority `controller_id` is None, and `topics` are outdated. `state`: NodeState.
        `native_lane`: "on", or why not; None: the node does not answer.
        """
        states = {node.id: self.state(node.id) for node in self.spec.nodes}
        asked = {
            node.id: self.spec.control_address(node)
            for node in self.spec.nodes
            if states[node.id] is NodeState.NO_ANSWER
        }
        views = self._views(asked)
        best_id = cluster_status.best_view(views)
        best = None if best_id is None else views[best_id]
        configured = [node.id for node in self.spec.nodes if "controller" in node.roles]
        voters = cluster_status.voters_of(best, configured)
        views |= self._views(  # voters that were added by hand
            {node_id: at for node_id, at in voters.items() if at and node_id not in states}
        )
        states |= dict.fromkeys(views, NodeState.RUNNING)
        quorum = cluster_status.describe_quorum(voters, views)
        topics = best["topics"] if best else {}
        return {
            "dir": str(self.directory.resolve()),
            "cluster_id": self.spec.cluster_id,
            "bootstrap": self.bootstrap,
            "controller_id": cluster_status.active_controller(quorum, views),
            "quorum": quorum,
            "nodes": [
                {
                    **self.describe_node(node),
                    "state": states[node.id].value,
                    "answers": node.id in views,
                    "native_lane": views.get(node.id, {}).get("native_lane"),
                    "fenced": None if best is None else best["fenced"].get(str(node.id)),
                }
                for node in self.spec.nodes
            ],
            "partitions": cluster_status.describe_partitions(topics, states),
            "topics": topics,
        }

    def describe_node(self, node: NodeSpec) -> dict[str, Any]:
        """Return a node and its process as plain values, ready for JSON.

        A node without the role broker has no Kafka listener: `kafka` is None.
        """
        return {
            **asdict(node),
            "roles": list(node.roles),
            "kafka": self.spec.client_address(node) if node.is_broker else None,
            "pid": self.pid(node.id),
        }

    def running(self) -> list[int]:
        """Return the ids of the running nodes."""
        return [node.id for node in self.spec.nodes if self.pid(node.id) is not None]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            if self._program.temporary:
                self._dispose()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            if self._program.temporary:
                self._dispose()


def _temporary_path() -> Path:
    """Choose a directory, to be created when the cluster starts."""
    return (
        Path(tempfile.gettempdir()).absolute() / f"{registry.TEMPORARY_PREFIX}{os.urandom(8).hex()}"
    )


def _status_at(address: str) -> dict[str, Any] | None:
    """Request the status from the control listener at `host:port`; None: no answer."""
    import http.client  # not at the top: a start of a cluster does not need it

    host, port = host_and_port(address)
    connection = http.client.HTTPConnection(host, port, timeout=_STATUS_TIMEOUT_S)
    try:
        connection.request("GET", "/api/v1/status")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return answer


def _found(directory: Path) -> ClusterSpec | None:
    exists = (directory / layout.CLUSTER_FILE).exists()
    return layout.load(directory) if exists else None

"""The nodes of a cluster on this machine, one OS process each: planned, started, ended, broken."""

import atexit
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from quorumlog.addresses import host_and_port
from quorumlog.cluster import layout, ports, registry, security, seeds, settings_check
from quorumlog.cluster.cluster_status import NodeState
from quorumlog.cluster.control_server import Connection, ControlServerProcess, has_ended
from quorumlog.cluster.defaults import defaults_called, require_kept_defaults
from quorumlog.cluster.errors import ClusterError, NodeFailed
from quorumlog.cluster.forked import spawn_again, spawn_together
from quorumlog.cluster.layout import ClusterSpec, NodeSpec
from quorumlog.cluster.processes import Launch, NodeProcess, Program
from quorumlog.cluster.running_clusters import STOP_TIMEOUT_S
from quorumlog.cluster.security import SecurityOptions
from quorumlog.cluster.shape import ClusterShape, read_racks
from quorumlog.cluster.time_limit import Say, TimeLimit, say_nothing

if TYPE_CHECKING:
    from quorumlog.cluster.seeding import Seeded

READY_TIMEOUT_S: Final = 30.0  # without any progress
_STOPPED_WITHIN_S: Final = 0.1


class ClusterNodes:
    """The processes of one cluster directory. `LocalCluster` adds the states of the cluster.

    seeded: the parts of a seed that `start` has created or found; None: there is no seed.
    """

    seeded: "Seeded | None" = None
    _failed: ClusterSpec | None = None  # an earlier plan, never ready: to be cleared
    _is_planned_here = False  # a new cluster

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        nodes: int = 3,
        controllers: int | None = None,
        brokers: int | None = None,
        racks: str | Sequence[str] = (),
        first_id: int = layout.FIRST_ID,
        host: str = "127.0.0.1",
        port: int = 0,
        advertised: str | None = None,
        listeners: Sequence[str] = (),
        config: Mapping[str, str] | None = None,
        defaults: str = "fast",
        node_module: str = "quorumlog.node",
        detached: bool = False,
        control: str | int | bool = False,
        breakable: bool = False,
        as_version: str | None = None,
        seed: str | Path | Mapping[str, Any] | None = None,
        **protection: Unpack[SecurityOptions],
    ) -> None:
        """Plan a new cluster, or open the cluster in `directory` (with its recorded nodes).

        `nodes`, `controllers`, `brokers`, `racks`: see `ClusterShape`; ids count up from
        `first_id`; `host`, `advertised`, `listeners`: see `node_listeners`. An existing cluster
        keeps racks, listeners and `protection`, and adds users. `config`: Kafka's names and texts;
        "" removes a setting. `defaults`: a name of `cluster.defaults`. `node_module`: its program.
        `detached` nodes outlive this process. `control`: a control server (docs/control-api.md) at
        this port, or host:port; `breakable`: it can break disks and clocks. `seed`: a `seed_file`.
        """
        config = {**(config or {}), **settings_check.release(as_version)}
        self._seed: Final = seeds.read(seed)
        self.directory: Final = Path(directory or registry.temporary_path()).absolute()
        self._owner_pid: Final = os.getpid()
        program = Program(module=node_module, detached=detached, temporary=not directory)
        self._control: Final = ControlServerProcess(self.directory, program, control, breakable)
        self._program: Final = program
        found = layout.find(self.directory)
        if found is not None and (found.was_ready or self._is_used(found)):
            settings_check.require_kept(found, config, advertised, listeners, read_racks(racks))
            require_kept_defaults(defaults, found.config)
            planned, self._new_users = found, security.require_kept(found.security, protection)
        else:
            self._failed, self._is_planned_here = found, True
            secured, self._new_users = security.read_options(protection)
            shape = ClusterShape(nodes, controllers, brokers, read_racks(racks))
            planned = layout.plan(
                shape.roles,
                host=host,
                port=port,
                config=defaults_called(defaults, shape.broker_count),
                first_id=first_id,
                advertised=advertised,
                listeners=listeners,
                protection=secured,
                racks=shape.node_racks,
            )
        self._adopt(replace(planned, config=settings_check.laid_over(planned.config, config)))

    def _adopt(self, spec: ClusterSpec) -> None:
        if (server := self._control.connection) is not None:
            spec = replace(spec, detours=server.detours)
        self.spec = spec
        self._processes = {node.id: self._process_of(spec, node) for node in spec.nodes}
        for node_id, variables in ({} if server is None else server.environments).items():
            self._processes[node_id].launch = Launch(environment=variables)

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
    def open(
        cls, directory: str | Path, *, detached: bool = False, node_module: str = "quorumlog.node"
    ) -> Self:
        """Open a directory that must hold a cluster, ready or not."""
        found = layout.load(Path(directory))
        cluster = cls(directory, detached=detached, node_module=node_module)
        cluster._failed, cluster._is_planned_here = None, False
        cluster._adopt(found)
        return cluster

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of all brokers."""
        return self.spec.bootstrap

    def own_client(self) -> dict[str, Any]:
        """Return the arguments of a quorumlog client that may do everything, such as `Admin`.

        In a secured cluster it is `User:broker`, at the listener of the brokers. Before its first
        start, a cluster has no secrets yet.
        """
        if self.spec.security is None or not security.has_files(self.directory):
            return {"bootstrap_servers": self.bootstrap}
        from quorumlog.cluster import client_configs

        way = client_configs.own_access(self.directory, self.spec)
        return client_configs.client_config(way, "quorumlog")

    def client_config(self, user: str | None = None, style: str = "quorumlog") -> dict[str, Any]:
        """Return the settings of a user's client, in the names of a library.

        `style`: confluent, aiokafka, kafka-python, java, kafkajs, franz-go, quorumlog. `user` None:
        the first super user, else the first user. Raises InvalidArgument, ClusterError.
        """
        from quorumlog.cluster import client_configs

        way = client_configs.access(self.directory, self.spec, user)
        return client_configs.client_config(way, style)

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """The nodes of the cluster, running or not."""
        return self.spec.nodes

    @property
    def control(self) -> Connection | None:
        """The URL and token of the control server; None: none runs."""
        return self._control.connection

    @property
    def is_breakable(self) -> bool:
        """Whether disks and clocks of the nodes can be broken."""
        return self._control.breaks_calls

    @property
    def is_detached(self) -> bool:
        """Whether the nodes outlive this process."""
        return self._program.detached

    @property
    def has_lost_control(self) -> bool:
        """Whether nodes run whose control server was killed: no connection reaches them."""
        return bool(self.running()) and has_ended(self.directory)

    @property
    def is_new(self) -> bool:
        """Whether the directory holds no cluster that was ready before."""
        return not self.spec.was_ready

    def take_detours(self, detours: Mapping[int, Mapping[str, str]]) -> None:
        """Set unrecorded properties of single nodes, by id, before the start.

        They route connections through forwarders or namespaces, which end with this process.
        """
        self._adopt(replace(self.spec, detours=detours))

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
        self._control.require_first(self.running(), self.spec.detours)
        for node in idle:
            self._require_ports(node)
        registry.running()  # removes leftovers of killed processes
        self._prepare(idle)
        limit = self._time_limit(timeout_s, [node.id for node in idle], say)
        starts_control = self._control.is_wanted and self._control.connection is None
        try:
            if starts_control:
                self._start_control(idle, timeout_s)
            spawn_together([self._processes[node.id] for node in idle], limit)
            for node in idle:
                self._processes[node.id].wait_ready(limit)
            self._load_advances()
            security.plant_users(self.directory, self.spec, self._new_users, self.own_client())
            self.spec = replace(self.spec, was_ready=True)
            layout.save(self.directory, self.spec)
            self.seeded = seeds.plant(self._seed, self.own_client(), say)
        except BaseException:
            for node in idle:
                self._end(node.id, signal.SIGKILL)
            if starts_control:  # an earlier one serves the nodes that run
                self._control.end(signal.SIGKILL)
            registry.running()  # removes their entries
            raise
        return time.monotonic() - started_s

    def _start_control(self, nodes: list[NodeSpec], timeout_s: float) -> None:
        self.take_detours(self._control.start(self.spec.cluster_id, timeout_s).detours)
        layout.write_properties(self.directory, self.spec, nodes)

    def _prepare(self, idle: list[NodeSpec]) -> None:
        """Write the files of the idle nodes; an existing cluster keeps its recorded settings."""
        if self._program.temporary and not self.directory.exists():
            self.directory.mkdir(mode=0o700)
            atexit.register(self._dispose)
        self._resolve_restore()
        if self._failed is not None:
            layout.clear(self.directory, self._failed)
            self._failed = None
        if self._is_planned_here:
            layout.found(self.directory, self.spec, self._new_users)
        if self.is_new:
            layout.save(self.directory, self.spec)
        else:
            self._load_advances()
            security.add_users(self.directory, self.spec, self._new_users)
            layout.write_properties(self.directory, self.spec, idle)

    def _load_advances(self) -> None:
        """Take over the advances that another process may have recorded: no clock goes back."""
        if (recorded := layout.find(self.directory)) is not None:
            self.spec = replace(self.spec, advances=recorded.advances)

    def _resolve_restore(self) -> None:
        """Complete, or give up, a restore that a crash of this machine, or a signal, has ended."""
        nodes = [layout.node_directory(self.directory, node.id) for node in self.spec.nodes]
        left = [node / name for node in nodes for name in (layout.RESTORING, layout.REPLACED)]
        if any(path.exists() for path in (self.directory / layout.RESTORING_FILE, *left)):
            from quorumlog.cluster import snapshots

            snapshots.resolve(self.directory)

    def _require_ports(self, node: NodeSpec) -> None:
        """Raise ClusterError, with port and process, if a port of the node is in use."""
        kafka = self.spec.kafka_address(node)
        kafka_port, control_port = host_and_port(kafka)[1], host_and_port(node.control)[1]
        is_derived = control_port == kafka_port + layout.CONTROL_PORT_STEP
        derived = f", its Kafka port + {layout.CONTROL_PORT_STEP}" if is_derived else ""
        wanted = {node.control: f"control port{derived}"}
        if node.is_broker:
            wanted |= {one.bind: f"port of the listener {one.name}" for one in node.listeners}
            wanted = {kafka: "Kafka port", **wanted}
            if node.internal is not None:
                wanted[node.internal] = f"port of the listener {security.INTERNAL} of the brokers"
        for address, what in wanted.items():
            found = ports.obstacle(*host_and_port(address))
            if found is not None:
                is_of_port = address in {kafka, node.control, node.internal}
                raise ClusterError(
                    f"{address} (node {node.id}, {what}): {found.reason}; "
                    f"{self._way_out(found.pid, is_of_port)}"
                )

    def _way_out(self, pid: int | None, is_of_port: bool) -> str:
        """Return the remedy for a port that a process uses, of --port or of a --listener."""
        for entry in registry.running():
            if entry.pid == pid:
                other = "; --port 0 chooses free ports" if self.is_new else ""
                return (
                    f"it is {entry.name} of the cluster in {entry.directory}; "
                    f"`quorumlog down --dir {entry.directory}` stops that{other}"
                )
        low = ports.connection_ports()[:1]
        below = f", below {low[0] - layout.CONTROL_PORT_STEP}" if low and pid is None else ""
        other = (
            f"choose another --port{below}" if is_of_port else "give its --listener another port"
        )
        return other if self.is_new else "free it, then try again"

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
            self._control.require_living(self.running())
            self._require_ports(node)
            self._resolve_restore()
            self._load_advances()
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
        """SIGSTOP: its connections stay open, without responses. It has stopped on return.

        A process in a system call that cannot be interrupted stops later.
        """
        self._process(node_id).signal(signal.SIGSTOP)
        until_s = time.monotonic() + _STOPPED_WITHIN_S
        while self.state(node_id) is NodeState.NO_ANSWER and time.monotonic() < until_s:
            time.sleep(0.0002)  # the system delivers the signal a moment later

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        self._process(node_id).signal(signal.SIGCONT)

    def stop(self, *, say: Say = say_nothing) -> tuple[int, ...]:
        """Stop all nodes cleanly, at once; kill the rest after STOP_TIMEOUT_S without progress.

        Returns the ids of the killed nodes. A node that ends by itself meanwhile counts as stopped.
        `say` receives the progress of a long stop, and the killed nodes. A control server carries
        out no further verbs from now on, and ends after the nodes.
        """
        is_signalled = self._control.signal(signal.SIGTERM)
        killed = self.stop_nodes(say=say)
        if is_signalled:
            self._control.end()
        registry.forget(self.spec.cluster_id, self.directory)
        return killed

    def stop_nodes(self, *, say: Say = say_nothing) -> tuple[int, ...]:
        """Stop all nodes as `stop` does; a control server stays. Returns the killed nodes."""
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
            self._control.end(signal.SIGKILL)
            registry.forget(self.spec.cluster_id, self.directory)
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

    def state(self, node_id: int) -> NodeState:
        """Return the state of a node's process; NO_ANSWER if it runs: no request is sent."""
        return self._process(node_id).state()

    def describe_node(self, node: NodeSpec) -> dict[str, Any]:
        """Return a node and its process as plain values, ready for JSON.

        `kafka`: the address that the first listener advertises; None: the node is no broker.
        """
        fields = asdict(node)
        for name in ("advertised", "protocol", "internal"):
            del fields[name]
        return {
            **fields,
            "roles": list(node.roles),
            "kafka": self.spec.client_address(node) if node.is_broker else None,
            "listeners": [asdict(one) for one in node.listeners] if node.is_broker else [],
            "pid": self.pid(node.id),
            "rack": self.spec.rack(node),
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

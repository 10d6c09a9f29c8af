"""A whole cluster on this machine, one OS process per node, for tests, demos and chaos."""

import http.client
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from quorumlog.cluster import layout
from quorumlog.cluster.errors import ClusterError, NodeFailed
from quorumlog.cluster.layout import ClusterSpec, NodeSpec
from quorumlog.cluster.processes import NodeProcess

READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 15.0
_STATUS_TIMEOUT_S: Final = 2.0


class LocalCluster:
    """Start, stop, kill and pause the nodes of one cluster directory.

    Use it as a context manager: `with LocalCluster(nodes=3) as cluster: ... cluster.bootstrap`.
    Without `directory` it lives in a temporary one, which goes when the block ends.
    All methods block; all raise ClusterError with a line that says what to do.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        nodes: int = 3,
        controllers: int | None = None,
        brokers: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        config: Mapping[str, str] | None = None,
        defaults: str = "fast",
        node_module: str = "quorumlog.node",
    ) -> None:
        """Plan a new cluster, or open the one that `directory` holds (its nodes are kept).

        `controllers` and `brokers`, given together, make nodes of one role each; else every one
        of `nodes` has both. `config` has Kafka's names and texts; `defaults` is "fast" or "kafka".
        `node_module` is run as the node's program: one that breaks a rule tests the tests.
        """
        self._temporary = directory is None
        self.directory: Final = Path(directory or tempfile.mkdtemp(prefix="quorumlog-"))
        config = dict(config or {})
        if (self.directory / layout.CLUSTER_FILE).exists():
            spec = layout.load(self.directory)
            self.spec = ClusterSpec(
                cluster_id=spec.cluster_id, nodes=spec.nodes, config={**spec.config, **config}
            )
        else:
            roles = _roles(nodes, controllers, brokers)
            if defaults not in {"fast", "kafka"}:
                raise ClusterError(f"--defaults {defaults}: it is fast or kafka")
            base = layout.FAST_DEFAULTS if defaults == "fast" else {}
            self.spec = layout.plan(roles, host=host, port=port, config={**base, **config})
        self._processes = {
            node.id: NodeProcess(self.directory, node.id, module=node_module)
            for node in self.spec.nodes
        }

    @classmethod
    def open(cls, directory: str | Path) -> Self:
        """Open a directory that must hold a cluster."""
        layout.load(Path(directory))
        return cls(directory)

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of all brokers."""
        return self.spec.bootstrap

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """Who is in the cluster, running or not."""
        return self.spec.nodes

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Start every node that does not run; return the seconds until all were ready.

        Ready: every broker is unfenced and there is an active controller. If a node fails, the
        ones started here are stopped again.
        """
        started_s = time.monotonic()
        layout.save(self.directory, self.spec)
        idle = [node.id for node in self.spec.nodes if self._processes[node.id].pid is None]
        try:
            for node_id in idle:
                self._processes[node_id].spawn()
            for node_id in idle:
                self._processes[node_id].wait_ready(started_s + timeout_s)
        except BaseException:
            for node_id in idle:
                self._end(node_id, signal.SIGKILL)
            raise
        return time.monotonic() - started_s

    def start_node(
        self, node_id: int, *, wait: bool = True, timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Start one node again; with `wait`, return when it is unfenced."""
        process = self._process(node_id)
        process.spawn()
        if wait:
            process.wait_ready(time.monotonic() + timeout_s)

    def kill(self, *node_ids: int) -> None:
        """SIGKILL: the processes are gone when this returns."""
        for node_id in node_ids:
            self._process(node_id).signal(signal.SIGKILL)
        for node_id in node_ids:
            self._process(node_id).wait_ended(STOP_TIMEOUT_S)

    def stop_node(self, node_id: int) -> None:
        """Stop one node cleanly: it hands over what it leads first."""
        self._process(node_id).signal(signal.SIGTERM)
        if not self._process(node_id).wait_ended(STOP_TIMEOUT_S):
            raise NodeFailed(f"node {node_id} did not stop within {STOP_TIMEOUT_S:.0f} s")

    def pause(self, node_id: int) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self._process(node_id).signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        self._process(node_id).signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop every node cleanly, together; kill what does not end in time."""
        running = [node.id for node in self.spec.nodes if self.pid(node.id) is not None]
        for node_id in running:
            self._process(node_id).signal(signal.SIGCONT)  # a paused one must hear the next
            self._process(node_id).signal(signal.SIGTERM)
        for node_id in running:
            if not self._process(node_id).wait_ended(STOP_TIMEOUT_S):
                self._end(node_id, signal.SIGKILL)

    def _end(self, node_id: int, number: signal.Signals) -> None:
        if self.pid(node_id) is not None:
            self._process(node_id).signal(number)
            self._process(node_id).wait_ended(STOP_TIMEOUT_S)

    def pid(self, node_id: int) -> int | None:
        """Return the node's process id, or None if it does not run."""
        return self._process(node_id).pid

    def last_words(self, node_id: int) -> str:
        """Say how a node that has ended did so, by the last line of its output."""
        return self._process(node_id).last_words()

    def _process(self, node_id: int) -> NodeProcess:
        self.spec.node(node_id)
        return self._processes[node_id]

    def node_status(self, node_id: int) -> dict[str, Any] | None:
        """Ask a node about itself and the cluster (GET /api/v1/status); None: no answer."""
        host, _, port = self.spec.node(node_id).control.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=_STATUS_TIMEOUT_S)
        try:
            connection.request("GET", "/api/v1/status")
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return answer

    def status(self) -> dict[str, Any]:
        """Describe the cluster as its best-informed running node sees it, and who runs."""
        views = {node.id: self.node_status(node.id) for node in self._running()}
        known = [view for view in views.values() if view is not None]
        best = max(known, key=lambda view: int(view["metadata_offset"]), default=None)
        return {
            "dir": str(self.directory),
            "cluster_id": self.spec.cluster_id,
            "bootstrap": self.bootstrap,
            "controller_id": best["controller_id"] if best else None,
            "nodes": [
                {
                    "id": node.id,
                    "roles": list(node.roles),
                    "kafka": node.kafka,
                    "control": node.control,
                    "pid": self.pid(node.id),
                    "answers": views.get(node.id) is not None,
                    "fenced": None if best is None else best["fenced"].get(str(node.id)),
                }
                for node in self.spec.nodes
            ],
            "topics": best["topics"] if best else {},
        }

    def _running(self) -> Iterable[NodeSpec]:
        return (node for node in self.spec.nodes if self.pid(node.id) is not None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)


def _roles(nodes: int, controllers: int | None, brokers: int | None) -> list[tuple[str, ...]]:
    if controllers is None and brokers is None:
        if nodes < 1:
            raise ClusterError(f"--nodes {nodes}: at least one is needed")
        return [("broker", "controller")] * nodes
    if not controllers or not brokers or controllers < 1 or brokers < 1:
        raise ClusterError("--controllers and --brokers go together, each at least 1")
    apart: list[tuple[str, ...]] = [("controller",) for _ in range(controllers)]
    return [*apart, *(("broker",) for _ in range(brokers))]

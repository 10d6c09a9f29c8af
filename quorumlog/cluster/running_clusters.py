"""Finds all running clusters of this user by the registry, and stops them by their processes.

No directory is needed: a cluster whose directory was removed is found, too.
"""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from quorumlog.cluster import layout, registry
from quorumlog.cluster.registry import Entry
from quorumlog.cluster.time_limit import Say, TimeLimit, say_nothing

STOP_TIMEOUT_S: Final = 30.0  # without any progress
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    """A cluster with at least one running process.

    `nodes`: the running nodes, by id. `control_server`: if it runs.
    """

    directory: Path
    cluster_id: str
    nodes: tuple[Entry, ...]
    control_server: Entry | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of the running brokers."""
        return ",".join(node.kafka for node in self.nodes if node.kafka)


def running(directory: Path | None = None) -> list[RunningCluster]:
    """Return all running clusters, or the clusters of one directory, sorted by directory."""
    entries = registry.running()
    if directory is not None:
        wanted = str(directory.absolute())
        entries = [entry for entry in entries if entry.directory == wanted]
    return [
        _cluster_of(Path(path), cluster_id, [*processes])
        for (path, cluster_id), processes in groupby(
            entries, key=lambda entry: (entry.directory, entry.cluster_id)
        )
    ]


def _cluster_of(directory: Path, cluster_id: str, processes: list[Entry]) -> RunningCluster:
    return RunningCluster(
        directory=directory,
        cluster_id=cluster_id,
        nodes=tuple(one for one in processes if not one.is_control_server),
        control_server=next((one for one in processes if one.is_control_server), None),
    )


def stop(clusters: Iterable[RunningCluster], say: Say = say_nothing) -> list[Entry]:
    """Stop these clusters cleanly, each as `LocalCluster.stop` does, all at once.

    Returns the nodes that were killed.
    """
    limits = [(cluster, _time_limit(cluster, say)) for cluster in clusters]
    remaining = [
        (process, limit)
        for cluster, limit in limits
        for process in (*filter(None, [cluster.control_server]), *cluster.nodes)
    ]
    for node, _ in remaining:
        _signal(node, signal.SIGCONT)  # a paused process does not act on SIGTERM
        _signal(node, signal.SIGTERM)
    while remaining := [(node, limit) for node, limit in remaining if node.is_running]:
        if all(limit.is_over() for _, limit in remaining):
            break
        time.sleep(_POLL_S)
    for node, limit in remaining:
        _signal(node, signal.SIGKILL)
        if not node.is_control_server:
            limit.say_killed(node.node_id)
    registry.running()  # removes their entries
    return [node for node, _ in remaining if not node.is_control_server]


def _time_limit(cluster: RunningCluster, say: Say) -> TimeLimit:
    files = {
        node.node_id: layout.pid_file(cluster.directory, node.node_id) for node in cluster.nodes
    }
    return TimeLimit(STOP_TIMEOUT_S, files, lambda line: say(f"{cluster.directory}: {line}"))


def _signal(node: Entry, number: signal.Signals) -> None:
    if not node.is_running:  # another process may have its id by now
        return
    try:
        os.kill(node.pid, number)
    except ProcessLookupError:  # it has just ended
        return

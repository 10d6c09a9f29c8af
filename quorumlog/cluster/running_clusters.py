"""Finds all running clusters of this user by the registry, and stops them by their processes.

A cluster whose directory was removed is found, too: nothing here reads a directory.
"""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from quorumlog.cluster import registry
from quorumlog.cluster.registry import Entry

STOP_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    """A cluster with at least one running node. `nodes`: the running ones, by id."""

    directory: Path
    cluster_id: str
    nodes: tuple[Entry, ...]

    @property
    def bootstrap(self) -> str:
        """`host:port,...` of the nodes that run."""
        return ",".join(node.kafka for node in self.nodes)


def running(directory: Path | None = None) -> list[RunningCluster]:
    """Return all running clusters, or those of one directory, by directory."""
    entries = registry.running()
    if directory is not None:
        wanted = str(directory.absolute())
        entries = [entry for entry in entries if entry.directory == wanted]
    return [
        RunningCluster(directory=Path(path), cluster_id=cluster_id, nodes=tuple(nodes))
        for (path, cluster_id), nodes in groupby(
            entries, key=lambda entry: (entry.directory, entry.cluster_id)
        )
    ]


def stop(clusters: Iterable[RunningCluster]) -> list[Entry]:
    """Stop these clusters cleanly, together; kill what does not end within STOP_TIMEOUT_S.

    Returns the nodes that were killed.
    """
    nodes = [node for cluster in clusters for node in cluster.nodes]
    for node in nodes:
        _signal(node, signal.SIGCONT)  # a paused process does not act on SIGTERM
        _signal(node, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    remaining = nodes
    while (remaining := [node for node in remaining if node.is_running]) and (
        time.monotonic() < deadline_s
    ):
        time.sleep(_POLL_S)
    for node in remaining:
        _signal(node, signal.SIGKILL)
    registry.running()  # removes their entries
    return remaining


def _signal(node: Entry, number: signal.Signals) -> None:
    if not node.is_running:  # its id may be another process's by now
        return
    try:
        os.kill(node.pid, number)
    except ProcessLookupError:  # it has just ended
        return

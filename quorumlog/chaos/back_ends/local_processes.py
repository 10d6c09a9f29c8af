"""The nodes of a cluster that the run itself has started: signals, and its own way to start them.

The best-informed node says which nodes hold a role (`LocalCluster.status`).
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from quorumlog.chaos.back_ends.back_end import NodeUnavailable, for_each
from quorumlog.chaos.faults.fault import Operation
from quorumlog.cluster import ClusterError, LocalCluster

NAME: Final = "local processes"
TEXT: Final = "SIGKILL, SIGSTOP, SIGCONT to nodes of this machine"
OPERATIONS: Final[frozenset[Operation]] = frozenset({"kill", "start", "pause", "resume"})
_START_TIMEOUT_S: Final = 20.0


class LocalProcesses:
    """A back end on a LocalCluster. What blocks runs in threads."""

    name = NAME
    operations = OPERATIONS

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster: Final = cluster

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, whether they run or not."""
        return tuple(node.id for node in self._cluster.nodes)

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""
        return tuple(node_id for node_id in self.node_ids if self._cluster.pid(node_id) is not None)

    async def perform(self, operation: Operation, node_ids: Sequence[int]) -> None:
        """Do the operation to all `node_ids`. Raises NodeUnavailable when all were tried."""
        with _translated():
            match operation:
                case "kill":
                    await asyncio.to_thread(self._cluster.kill, *node_ids)
                case "pause":
                    await for_each(node_ids, self._pause)
                case "resume":
                    await for_each(node_ids, self._resume)
                case "start":
                    running = await self.running()
                    await for_each(
                        (node_id for node_id in node_ids if node_id not in running), self._start
                    )

    async def _pause(self, node_id: int) -> None:
        self._cluster.pause(node_id)

    async def _resume(self, node_id: int) -> None:
        self._cluster.resume(node_id)

    async def _start(self, node_id: int) -> None:
        """Start one node, and leave it alone if it is not ready in time.

        `LocalCluster.start` would kill it, and that would look as if it had ended by itself.
        """
        start = partial(self._cluster.start_node, timeout_s=_START_TIMEOUT_S)
        await asyncio.to_thread(start, node_id)

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold the role, as the best-informed node sees it."""
        status = await asyncio.to_thread(self._cluster.status)
        partitions: list[dict[str, Any]] = status["topics"].get(topic, {"partitions": []})[
            "partitions"
        ]
        match role:
            case "metadata-leader":
                return [status["controller_id"]]
            case "partition-leader":
                return sorted({int(partition["leader"]) for partition in partitions})
            case "isr-follower":
                followers = (
                    member
                    for partition in partitions
                    for member in partition["isr"]
                    if member != partition["leader"]
                )
                return sorted(set(followers))
            case _:
                return []

    def last_words(self, node_id: int) -> str:
        """Return the last line of the node's output."""
        return self._cluster.last_words(node_id)

    async def restore(self) -> None:
        """Do nothing: the nodes end with the run."""


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ClusterError, ProcessLookupError) as error:
        raise NodeUnavailable(str(error)) from error

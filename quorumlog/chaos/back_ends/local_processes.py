"""The nodes of a cluster that the run itself has started: signals, and its own way to start them.

The best-informed node says which nodes hold a role; those that are paused are not asked.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from quorumlog.chaos.back_ends.back_end import (
    GROUPS_TOPIC,
    BackEndFailed,
    NodeUnavailable,
    WithoutLinks,
    for_each,
    holders_of,
)
from quorumlog.cluster import ClusterError, LocalCluster

_START_TIMEOUT_S: Final = 20.0


class LocalProcesses(WithoutLinks):
    """A back end on a LocalCluster. What blocks runs in threads."""

    name = "local processes"
    text = "SIGKILL, SIGSTOP, SIGCONT to nodes of this machine"
    operations: Final[frozenset[str]] = frozenset({"kill", "start", "stop", "pause", "resume"})

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster: Final = cluster
        self._paused: Final[set[int]] = set()  # they would not answer

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, whether they run or not."""
        return tuple(node.id for node in self._cluster.nodes)

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""
        return tuple(node_id for node_id in self.node_ids if self._cluster.pid(node_id) is not None)

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        """Do the operation to all `node_ids`. Raises NodeUnavailable when all were tried."""
        del amount  # of no operation here
        with _translated():
            match operation:
                case "kill":
                    self._paused.difference_update(node_ids)
                    await asyncio.to_thread(self._cluster.kill, *node_ids)
                case "pause":
                    self._paused.update(node_ids)
                    await for_each(node_ids, partial(_in_thread, self._cluster.pause))
                case "resume":
                    self._paused.difference_update(node_ids)
                    await for_each(node_ids, partial(_in_thread, self._cluster.resume))
                case "stop":
                    await for_each(node_ids, partial(_in_thread, self._cluster.stop_node))
                case "start":
                    # `LocalCluster.start` would kill a node that is not ready in time, and that
                    # would look as if it had ended by itself.
                    start = partial(self._cluster.start_node, timeout_s=_START_TIMEOUT_S)
                    stopped = {*node_ids} - {*await self.running()}
                    await for_each(sorted(stopped), partial(_in_thread, start))
                case _:
                    raise BackEndFailed(f"{self.name} have no operation {operation!r}")

    def why_not(self, fault: str) -> str:
        """Say nothing: what signals cannot do is plain."""
        del fault
        return ""

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold the role, as the best-informed node sees it."""
        answering = [node_id for node_id in await self.running() if node_id not in self._paused]
        answers = await asyncio.gather(
            *(asyncio.to_thread(self._cluster.node_status, node_id) for node_id in answering)
        )
        known = [answer for answer in answers if answer is not None]
        if not known:
            return []
        status = max(known, key=lambda answer: int(answer["metadata_offset"]))
        if role == "metadata-leader":
            return [status["controller_id"]]
        if role == "group-coordinator":
            role, topic = "partition-leader", GROUPS_TOPIC
        partitions = status["topics"].get(topic, {"partitions": []})["partitions"]
        return holders_of(role, ((int(one["leader"]), one["isr"]) for one in partitions))

    def last_words(self, node_id: int) -> str:
        """Return the last line of the node's output."""
        return self._cluster.last_words(node_id)

    async def restore(self) -> None:
        """Do nothing: the nodes end with the run."""


async def _in_thread(act: Callable[[int], object], node_id: int) -> None:
    await asyncio.to_thread(act, node_id)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ClusterError, ProcessLookupError) as error:
        raise NodeUnavailable(str(error)) from error

"""Carries out a schedule against a local cluster, and takes every fault back at the end.

It resolves a role at the moment of the fault, by what the cluster says of itself then. A node that
ends without its doing is written down as `node-ended`: that is a finding, whatever the reason.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from quorumlog.chaos.faults.schedule import FaultAction, Schedule
from quorumlog.cluster import ClusterError, LocalCluster

Record = Callable[[str, str, str], None]
"""Called with (f, node, details): how the nemesis writes itself into the history."""

NODE_ENDED: Final = "node-ended"
NOT_READY: Final = "not-ready"  # it runs, but does not take part: no finding by itself
_ALONE_S: Final = 0.7
_START_TIMEOUT_S: Final = 20.0
_NOT_THERE: Final = (ClusterError, ProcessLookupError)  # a node that ended, or is not ready


def _names(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


class Nemesis:
    """One schedule against one cluster. What blocks runs in threads.

    A fault is written down before it is inflicted and its end after it is over, so that what
    happened meanwhile lies between.
    """

    def __init__(
        self, cluster: LocalCluster, schedule: Schedule, *, topic: str, record: Record
    ) -> None:
        self._cluster: Final = cluster
        self._schedule: Final = schedule
        self._topic: Final = topic
        self._record: Final = record
        self.done: Final[list[str]] = []  # the faults that were carried out
        self._ended: Final[set[int]] = set()
        self._rng: Final = random.Random(f"targets {schedule.seed}")  # noqa: S311 - reproducible

    async def run(self) -> None:
        """Perform the schedule; return when its last fault was taken back."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        for action in self._schedule.actions:
            await asyncio.sleep(max(0.0, started_s + action.t_us / 1e6 - loop.time()))
            self.note_ended()
            node_ids, role = await asyncio.to_thread(self._resolve, action)
            if not node_ids:
                return  # no node runs any more: there is nothing left to break
            try:
                if action.fault == "pause-kill":
                    await self._pause_kill(node_ids[0], role)
                else:
                    self._record(action.fault, _names(node_ids), role)
                    await asyncio.to_thread(self._inflict, action, node_ids)
                self.done.append(action.fault)
            except _NOT_THERE:
                self.note_ended()  # it ended just before
            await asyncio.sleep(max(0.0, started_s + action.end_us / 1e6 - loop.time()))
            await self._take_back(action, node_ids)

    async def _pause_kill(self, leader: int, role: str) -> None:
        """Leave a leader alone for a moment, then kill it: nobody else has what it wrote then.

        A cluster that waits for its replicas has acknowledged none of it.
        """
        others = [node.id for node in self._cluster.nodes if node.id != leader]
        others = [node_id for node_id in others if self._cluster.pid(node_id) is not None]
        self._record("pause", _names(others), f"all but {role} {leader}")
        try:
            for node_id in others:
                self._cluster.pause(node_id)
            await asyncio.sleep(_ALONE_S)
            self._record("kill", str(leader), role)
            await asyncio.to_thread(self._cluster.kill, leader)
        finally:
            for node_id in others:
                with suppress(*_NOT_THERE):
                    self._cluster.resume(node_id)
            self._record("resume", _names(others), "")

    async def _take_back(self, action: FaultAction, node_ids: Sequence[int]) -> None:
        try:
            if action.fault == "pause":
                self._cluster.resume(node_ids[0])
            else:
                await self._start(node_ids)
        except _NOT_THERE as error:
            self._record(NOT_READY, _names(node_ids), str(error))
            self.note_ended()
        else:
            self._record("resume" if action.fault == "pause" else "start", _names(node_ids), "")

    async def heal(self) -> bool:
        """Bring every node back; return whether all are, and none had ended by itself."""
        self.note_ended()
        for node in self._cluster.nodes:
            with suppress(*_NOT_THERE):
                self._cluster.resume(node.id)
        try:
            await self._start([node.id for node in self._cluster.nodes])
        except _NOT_THERE as error:
            self._record(NOT_READY, "", str(error))
            self.note_ended()
            return False
        self._record("heal", "", "every node is back")
        return not self._ended

    async def _start(self, node_ids: Sequence[int]) -> None:
        """Start those that do not run, together. Raises the first error when all were tried.

        Unlike `LocalCluster.start`, it leaves a node that is not ready in time alone: to kill it
        would look as if it had ended by itself.
        """
        idle = [node_id for node_id in node_ids if self._cluster.pid(node_id) is None]
        start = partial(self._cluster.start_node, timeout_s=_START_TIMEOUT_S)
        tried = await asyncio.gather(
            *(asyncio.to_thread(start, node_id) for node_id in idle), return_exceptions=True
        )
        for error in tried:
            if error is not None:
                raise error

    def note_ended(self) -> None:
        """Write down every node that does not run although nobody here killed it."""
        for node in self._cluster.nodes:
            if self._cluster.pid(node.id) is None and node.id not in self._ended:
                self._ended.add(node.id)
                self._record(NODE_ENDED, str(node.id), self._cluster.last_words(node.id))

    def _inflict(self, action: FaultAction, node_ids: Sequence[int]) -> None:
        if action.fault == "pause":
            self._cluster.pause(node_ids[0])
        else:
            self._cluster.kill(*node_ids)

    def _resolve(self, action: FaultAction) -> tuple[list[int], str]:
        """Name the nodes that hold the role now, of those that run; and say so if none does."""
        running = [node.id for node in self._cluster.nodes if self._cluster.pid(node.id)]
        if action.target == "all" or not running:
            return running, action.target
        holders = [node_id for node_id in self._holders(action.target) if node_id in running]
        if not holders and action.target != "any":
            return [self._rng.choice(running)], f"any, as nobody was {action.target}"
        return [self._rng.choice(holders or running)], action.target

    def _holders(self, role: str) -> list[int]:
        status = self._cluster.status()
        partitions: list[dict[str, Any]] = status["topics"].get(self._topic, {"partitions": []})[
            "partitions"
        ]
        match role:
            case "metadata-leader":
                return [status["controller_id"]]
            case "partition-leader":
                return sorted({int(partition["leader"]) for partition in partitions})
            case "isr-follower":
                return sorted(
                    {
                        member
                        for partition in partitions
                        for member in partition["isr"]
                        if member != partition["leader"]
                    }
                )
            case _:
                return []

"""Carries out a schedule against a local cluster, and takes every fault back at the end.

It resolves a role at the moment of the fault, by what the cluster says of itself then. A node that
ends without its doing is written down as `node-ended`: that is a finding, whatever the reason.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from quorumlog.chaos.faults.schedule import FaultAction, Schedule
from quorumlog.cluster import LocalCluster, NodeFailed

Record = Callable[[str, str, str], None]
"""Called with (f, node, details): how the nemesis writes itself into the history."""

NODE_ENDED: Final = "node-ended"
NOT_READY: Final = "not-ready"  # it runs, but does not take part: no finding by itself
_ALONE_S: Final = 0.7
_START_TIMEOUT_S: Final = 20.0


class Nemesis:
    """One schedule against one cluster. Blocking calls run in threads, one after the other."""

    def __init__(
        self, cluster: LocalCluster, schedule: Schedule, *, topic: str, record: Record
    ) -> None:
        self._cluster: Final = cluster
        self._schedule: Final = schedule
        self._topic: Final = topic
        self._record: Final = record
        self._ended: Final[set[int]] = set()
        self._rng: Final = random.Random(f"targets {schedule.seed}")  # noqa: S311 - reproducible

    async def run(self) -> None:
        """Perform the schedule; return when its last fault was taken back."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        for action in self._schedule.actions:
            await asyncio.sleep(max(0.0, started_s + action.t_us / 1e6 - loop.time()))
            self._note_ended()
            node_ids = await asyncio.to_thread(self._resolve, action)
            if not node_ids:
                return  # no node runs any more: there is nothing left to break
            names = ",".join(map(str, node_ids))
            if action.fault == "pause-kill":
                await self._pause_kill(node_ids[0])
            else:
                await asyncio.to_thread(self._inflict, action, node_ids)
                self._record(action.fault, names, action.target)
            await asyncio.sleep(max(0.0, started_s + action.end_us / 1e6 - loop.time()))
            try:
                await asyncio.to_thread(self._take_back, action, node_ids)
            except NodeFailed as error:
                self._record(NOT_READY, names, str(error))
                self._note_ended()
            else:
                self._record("resume" if action.fault == "pause" else "start", names, "")

    async def _pause_kill(self, leader: int) -> None:
        """Leave a leader alone for a moment, then kill it: nobody else has what it wrote then.

        A cluster that waits for its replicas has acknowledged none of it.
        """
        others = [node.id for node in self._cluster.nodes if node.id != leader]
        others = [node_id for node_id in others if self._cluster.pid(node_id) is not None]
        names = ",".join(map(str, others))
        for node_id in others:
            self._cluster.pause(node_id)
        self._record("pause", names, f"all but partition leader {leader}")
        await asyncio.sleep(_ALONE_S)
        await asyncio.to_thread(self._cluster.kill, leader)
        self._record("kill", str(leader), "partition-leader")
        for node_id in others:
            self._cluster.resume(node_id)
        self._record("resume", names, "")

    async def heal(self) -> bool:
        """Bring every node back; return whether all are, and none had ended by itself."""
        self._note_ended()
        try:
            await asyncio.to_thread(self._heal)
        except NodeFailed as error:
            self._record(NOT_READY, "", str(error))
            self._note_ended()
            return False
        self._record("heal", "", "every node is back")
        return not self._ended

    def _note_ended(self) -> None:
        """Write down every node that does not run although nobody here killed it."""
        for node in self._cluster.nodes:
            if self._cluster.pid(node.id) is None and node.id not in self._ended:
                self._ended.add(node.id)
                self._record(NODE_ENDED, str(node.id), self._cluster.last_words(node.id))

    def _heal(self) -> None:
        for node in self._cluster.nodes:
            if self._cluster.pid(node.id) is not None:
                self._cluster.resume(node.id)
        self._cluster.start(timeout_s=_START_TIMEOUT_S)

    def _inflict(self, action: FaultAction, node_ids: list[int]) -> None:
        if action.fault == "pause":
            self._cluster.pause(node_ids[0])
        else:
            self._cluster.kill(*node_ids)

    def _take_back(self, action: FaultAction, node_ids: list[int]) -> None:
        if action.fault == "pause":
            self._cluster.resume(node_ids[0])
        elif len(node_ids) > 1:
            self._cluster.start(timeout_s=_START_TIMEOUT_S)
        else:
            self._cluster.start_node(node_ids[0], timeout_s=_START_TIMEOUT_S)

    def _resolve(self, action: FaultAction) -> list[int]:
        """Name the nodes that hold the role now, of those that run."""
        running = [node.id for node in self._cluster.nodes if self._cluster.pid(node.id)]
        if action.target == "all":
            return running
        holders = [node_id for node_id in self._holders(action.target) if node_id in running]
        return [self._rng.choice(holders or running)] if running else []

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

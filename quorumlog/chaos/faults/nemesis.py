"""Carries out a schedule against a local cluster, and takes every fault back at the end.

It resolves a role at the moment of the fault, by what the cluster says of itself then.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from quorumlog.chaos.faults.schedule import FaultAction, Schedule
from quorumlog.cluster import ClusterError, LocalCluster

Record = Callable[[str, str, str], None]
"""Called with (f, node, details): how the nemesis writes itself into the history."""


class Nemesis:
    """One schedule against one cluster. Blocking calls run in threads, one after the other."""

    def __init__(
        self, cluster: LocalCluster, schedule: Schedule, *, topic: str, record: Record
    ) -> None:
        self._cluster: Final = cluster
        self._schedule: Final = schedule
        self._topic: Final = topic
        self._record: Final = record
        self._rng: Final = random.Random(f"targets {schedule.seed}")  # noqa: S311 - reproducible

    async def run(self) -> None:
        """Perform the schedule; return when its last fault was taken back."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        for action in self._schedule.actions:
            await asyncio.sleep(max(0.0, started_s + action.t_us / 1e6 - loop.time()))
            node_ids = await asyncio.to_thread(self._resolve, action)
            names = ",".join(map(str, node_ids))
            await asyncio.to_thread(self._inflict, action, node_ids)
            self._record(action.fault, names, action.target)
            await asyncio.sleep(max(0.0, started_s + action.end_us / 1e6 - loop.time()))
            await asyncio.to_thread(self._take_back, action, node_ids)
            self._record("resume" if action.fault == "pause" else "start", names, "")

    async def heal(self) -> None:
        """Bring every node back and wait until the cluster is whole. Raises ClusterError if not."""
        await asyncio.to_thread(self._heal)
        self._record("heal", "", "every node is back")

    def _heal(self) -> None:
        for node in self._cluster.nodes:
            if self._cluster.pid(node.id) is not None:
                self._cluster.resume(node.id)
        self._cluster.start()

    def _inflict(self, action: FaultAction, node_ids: list[int]) -> None:
        if action.fault == "pause":
            self._cluster.pause(node_ids[0])
        else:
            self._cluster.kill(*node_ids)

    def _take_back(self, action: FaultAction, node_ids: list[int]) -> None:
        if action.fault == "pause":
            self._cluster.resume(node_ids[0])
        elif len(node_ids) > 1:
            self._cluster.start()
        else:
            self._cluster.start_node(node_ids[0])

    def _resolve(self, action: FaultAction) -> list[int]:
        """Name the nodes that hold the role now. Raises ClusterError if no node runs."""
        running = [node.id for node in self._cluster.nodes if self._cluster.pid(node.id)]
        if not running:
            raise ClusterError("no node of the cluster runs: there is nothing left to break")
        if action.target == "all":
            return running
        holders = [node_id for node_id in self._holders(action.target) if node_id in running]
        return [self._rng.choice(holders or running)]

    def _holders(self, role: str) -> list[int]:
        status = self._cluster.status()
        partitions: list[dict[str, Any]] = status["topics"].get(self._topic, {"partitions": []})[
            "partitions"
        ]
        match role:
            case "metadata-leader":
                return [status["controller_id"]]
            case "partition-leader":
                return sorted({partition["leader"] for partition in partitions})
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

"""A back end in memory whose operations take their time, as those on real processes do."""

import asyncio
import random
from collections.abc import Sequence

from quorumlog.chaos.back_ends.back_end import NodeUnavailable, for_each
from tests.support.chaos.nodes_in_memory import NodesInMemory

_STOP_TIMEOUT_S = 3.0


class SlowNodes(NodesInMemory):
    """A kill may arrive before a start has made a process; a start fails if a kill comes after.

    A stop waits until a paused node goes on, and kills it in the end. A node with a broken disk may
    give up, perhaps when the disk works again. `ended` are those that ended by themselves, at the
    times that a test chooses.
    """

    operations = frozenset(
        {"kill", "start", "stop", "pause", "resume", "starve", "feed", "wipe"}
        | {"fill_disk", "free_disk", "fail_disk", "mend_disk"}
    )

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.lives = {1: 0, 2: 0, 3: 0}  # how often each has started
        self.stopping = set[int]()
        self.ended: list[int] = []
        self.gave_up = set[int]()
        self.bad_disks = set[tuple[str, int]]()
        self.said = dict.fromkeys(self.node_ids, "")

    async def running(self) -> tuple[int, ...]:
        seen = tuple(sorted(self.is_running))
        await self._wait(0.005)
        return seen

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        del amount

        async def act(node_id: int) -> None:
            match operation:
                case "start":
                    await self._start(node_id)
                case "kill":
                    await self._wait(0.005)
                    self._end(node_id)
                    await self._wait(0.05)
                case "stop":
                    await self._stop(node_id)
                case "pause" | "resume":
                    self._require(node_id)
                    (self.paused.add if operation == "pause" else self.paused.discard)(node_id)
                case "fill_disk" | "fail_disk":
                    self._require(node_id)
                    self._break_disk(operation, node_id)
                case "free_disk" | "mend_disk":
                    broken_by = {"free_disk": "fill_disk", "mend_disk": "fail_disk"}[operation]
                    self.bad_disks.discard((broken_by, node_id))
                case _:
                    await self._wait(0.5)

        await for_each(node_ids, act)

    def end_by_itself(self, node_id: int) -> None:
        if node_id in self.is_running - self.stopping:
            self._end(node_id)
            self.ended.append(node_id)
            self.said[node_id] = f"node {node_id} ended with status 70: a rule does not hold"

    def last_words(self, node_id: int) -> str:
        return self.said[node_id]

    def _break_disk(self, operation: str, node_id: int) -> None:
        self.bad_disks.add((operation, node_id))
        if self._rng.random() < 0.5:
            later_s, life = self._rng.uniform(0, 3), self.lives[node_id]
            asyncio.get_running_loop().call_later(later_s, self._give_up, node_id, life)

    def _give_up(self, node_id: int, life: int) -> None:
        if node_id in self.is_running - self.stopping and self.lives[node_id] == life:
            self._end(node_id)
            self.gave_up.add(node_id)
            self.said[node_id] = f"node {node_id} ended with status 1: [Errno 5] Input/output error"

    async def _start(self, node_id: int) -> None:
        if node_id in self.is_running:
            return
        await self._wait(0.05)
        self.is_running.add(node_id)
        self.lives[node_id] += 1
        life = self.lives[node_id]
        ready_s = self._rng.uniform(0, 3)
        while ready_s > 0:
            await asyncio.sleep(min(0.1, ready_s))
            ready_s -= 0.1
            if node_id not in self.is_running or self.lives[node_id] != life:
                raise NodeUnavailable(f"node {node_id} was killed while it started")
        if {("fill_disk", node_id), ("fail_disk", node_id)} & self.bad_disks:
            self._give_up(node_id, life)
            raise NodeUnavailable(self.said[node_id])
        if self._rng.random() < 0.05:
            raise NodeUnavailable(f"node {node_id} is not ready in time")

    async def _stop(self, node_id: int) -> None:
        self._require(node_id)
        self.stopping.add(node_id)
        deadline_s = asyncio.get_running_loop().time() + _STOP_TIMEOUT_S
        await self._wait(1.0)
        while node_id in self.paused and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(0.1)
        self.stopping.discard(node_id)
        self.is_running.discard(node_id)
        self.paused.discard(node_id)

    def _end(self, node_id: int) -> None:
        self._require(node_id)
        self.is_running.discard(node_id)
        self.paused.discard(node_id)

    def _require(self, node_id: int) -> None:
        if node_id not in self.is_running:
            raise NodeUnavailable(f"node {node_id} does not run")

    async def _wait(self, at_most_s: float) -> None:
        await asyncio.sleep(self._rng.uniform(0, at_most_s))

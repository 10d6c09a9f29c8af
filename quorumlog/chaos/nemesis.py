"""Carries out a schedule through a back end, and takes every fault back at the end.

It resolves a role at the moment of the fault, by what the cluster says of itself then. A node that
ends although nothing here killed it is recorded as `node-ended`: a finding, whatever the reason.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from quorumlog.chaos.back_ends.back_end import BackEnd, NodeUnavailable
from quorumlog.chaos.faults.fault import ALL, MILLION, Fault, ProcessFault, Step
from quorumlog.chaos.faults.registry import FaultUnsupported, faults_made_of
from quorumlog.chaos.schedule import Schedule, Target

Record = Callable[[str, str, str], object]
"""Called with (f, node, details): how the nemesis writes a row of the history."""

NODE_ENDED: Final = "node-ended"
NOT_READY: Final = "not-ready"  # it runs, but does not take part: no finding by itself
_BREAKS: Final = {"kill", "pause"}


def _names(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


class Nemesis:
    """One schedule against one back end.

    An operation that breaks a node is recorded before it is done, and one that mends it after it
    is done, so that everything that happened meanwhile lies between the two rows. Raises ValueError
    for a schedule that names a fault or a node that the back end does not have.
    """

    def __init__(
        self, back_end: BackEnd, schedule: Schedule, *, topic: str, record: Record
    ) -> None:
        check_schedule(schedule, back_end)
        self._back_end: Final = back_end
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

        async def wait_until(t_us: int) -> None:
            await asyncio.sleep(max(0.0, started_s + t_us / MILLION - loop.time()))

        for action in self._schedule.actions:
            fault = _on_processes(action.fault, self._back_end)
            await wait_until(action.t_us)
            await self.note_ended()
            running = await self._back_end.running()
            if not running:
                return  # there is nothing left to break
            node_ids, role = await self._resolve(action.target, running)
            if not node_ids:
                continue  # it names nodes, and none of them runs
            try:
                await self._perform(fault.inflict(node_ids, running), fault, role)
                self.done.append(fault.name)
            except NodeUnavailable:
                await self.note_ended()  # it ended just before
            await wait_until(action.end_us)
            await self._take_back(fault.take_back(node_ids))

    async def _perform(self, steps: Sequence[Step], fault: Fault, role: str) -> None:
        """Perform all steps. If one fails or is cancelled, let go on what a step has paused."""
        for place, step in enumerate(steps):
            details = role if step.operation == fault.name else f"{fault.name}: {role}"
            try:
                await self._perform_one(step, details)
                await asyncio.sleep(step.wait_us / MILLION)
            except BaseException:
                for later in steps[place + 1 :]:
                    if later.operation == "resume":
                        with suppress(NodeUnavailable):
                            await self._perform_one(later, "")
                raise

    async def _perform_one(self, step: Step, details: str) -> None:
        if not step.node_ids:
            return  # such as "the others" of a cluster of one node
        names = _names(step.node_ids)
        if step.operation in _BREAKS:
            self._record(step.operation, names, details)
        await self._back_end.perform(step.operation, step.node_ids)
        if step.operation not in _BREAKS:
            self._record(step.operation, names, "")

    async def _take_back(self, steps: Sequence[Step]) -> None:
        for step in steps:
            try:
                await self._perform_one(step, "")
            except NodeUnavailable as error:
                self._record(NOT_READY, _names(step.node_ids), str(error))
                await self.note_ended()

    async def heal(self) -> bool:
        """Bring every node back; return whether all are, and none had ended by itself."""
        await self.note_ended()
        node_ids, operations = self._back_end.node_ids, self._back_end.operations
        if "resume" in operations:
            with suppress(NodeUnavailable):  # those that do not run are started next
                await self._back_end.perform("resume", node_ids)
        try:
            if "start" in operations:
                await self._back_end.perform("start", node_ids)
        except NodeUnavailable as error:
            self._record(NOT_READY, "", str(error))
            await self.note_ended()
            return False
        self._record("heal", "", "every node is back")
        return not self._ended

    async def note_ended(self) -> None:
        """Record every node that does not run although nothing here killed it."""
        running = await self._back_end.running()
        for node_id in self._back_end.node_ids:
            if node_id not in running and node_id not in self._ended:
                self._ended.add(node_id)
                self._record(NODE_ENDED, str(node_id), self._back_end.last_words(node_id))

    async def _resolve(self, target: Target, running: Sequence[int]) -> tuple[tuple[int, ...], str]:
        """Return the running nodes to hit, and the role, which says so if no node holds it."""
        if not isinstance(target, str):
            return tuple(node_id for node_id in target if node_id in running), "named"
        if target == ALL:
            return tuple(running), target
        known = await self._back_end.holders(target, self._topic)
        holders = [node_id for node_id in known if node_id in running]
        if not holders and target != "any":
            return (self._rng.choice(running),), f"any, as no node was {target}"
        return (self._rng.choice(holders or running),), target


def check_schedule(schedule: Schedule, back_end: BackEnd) -> None:
    """Raise FaultUnsupported or ValueError if the back end cannot carry the schedule out."""
    can, node_ids = faults_made_of(back_end.operations), back_end.node_ids
    schedule.check_supported(back_end=back_end.name, can=can)
    for action in schedule.actions:
        named = () if isinstance(action.target, str) else action.target
        for node_id in named:
            if node_id not in node_ids:
                raise ValueError(f"the schedule names node {node_id}; there are {_names(node_ids)}")


def _on_processes(fault: Fault, back_end: BackEnd) -> ProcessFault:
    if not isinstance(fault, ProcessFault):
        raise FaultUnsupported(fault.name, back_end.name, faults_made_of(back_end.operations))
    return fault

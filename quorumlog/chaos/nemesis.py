"""Carries out a schedule through a back end, and heals every fault at the end.

Each action is a task of its own, so faults may overlap. A role is resolved at the moment of the
fault, from the cluster's state at that time. A node that ends without a fault is recorded as
`node-ended`: a finding, for any reason. A node whose disk a fault has broken may give up and name
the error; then it is down because of that fault.
"""

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.back_ends.back_end import BackEnd, NodeUnavailable
from quorumlog.chaos.faults.fault import (
    ALL,
    CLIENT,
    GROUPS,
    MAY_BE_DONE,
    MILLION,
    UNDOING,
    UNDONE_BY,
    UNDONE_LAST,
    AnyStep,
    Impose,
    Lift,
    Scene,
    Step,
    StepFault,
)
from quorumlog.chaos.faults.links import LinkRule
from quorumlog.chaos.faults.registry import FaultUnsupported, faults_made_of
from quorumlog.chaos.faults.rows import details_of
from quorumlog.chaos.held_nodes import HeldNodes, Hold
from quorumlog.chaos.schedule import Action, Schedule, Target

Record = Callable[[str, str, str], object]
"""Called with (f, node, details) to write a row of the history."""

NODE_ENDED: Final = "node-ended"
GAVE_UP: Final = "gave-up"  # a node whose disk was broken has ended, as it should
NOT_READY: Final = "not-ready"  # it runs, but does not take part: no finding by itself
SKIPPED: Final = "skipped"  # an action without a target, or without an effect
ASKED: Final = "asked"  # an administrator's request that the cluster has carried out
_KILLS: Final = frozenset({"kill", "lose_power", "fail_fsync"})  # the process ends at once
# The exit status for "it cannot run here", and the texts of disk errors.
_GAVE_UP: Final = re.compile(r"ended with status 1: .*(No space left|Input/output error)")
STOP: Final = "stop-"  # before the name of a fault: the row that lifts its rules on links


def _names(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """One action that is being carried out."""

    number: int
    fault: StepFault
    scene: Scene
    role: str  # the role in the schedule, and whether a node held it

    @property
    def whom(self) -> str:
        """The parties that it hits, for a row."""
        return ",".join(self.scene.parties)

    def details(self, remark: str = "") -> str:
        return details_of(self.number, self.fault.name, remark)


class Nemesis:
    """One schedule against one back end.

    A step that breaks something is recorded before it is done, and a step that mends it after it is
    done, so that all effects lie between the two rows. Raises ValueError for a schedule that names
    a fault or a node that the back end does not have.
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
        self._over: Final[dict[str, _Act]] = {}  # the actions that start no more nodes
        self._held: Final = HeldNodes()
        self._rules: Final[dict[str, str]] = {}  # the rules in force, and their actions
        self._destroying: Final = asyncio.Lock()  # one copy of the data is destroyed at a time

    async def run(self) -> None:
        """Perform the schedule; return when its last fault is healed."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        async with asyncio.TaskGroup() as actions:
            for number, action in enumerate(self._schedule.actions, start=1):
                await asyncio.sleep(max(0.0, started_s + action.t_us / MILLION - loop.time()))
                actions.create_task(self._carry_out(number, action))

    async def _carry_out(self, number: int, action: Action) -> None:
        fault = _with_steps(action.fault, self._back_end)
        async with self._destroying if fault.destroys else nullcontext():
            await self.note_ended()
            act = await self._act(number, action, fault)
            if act is None:
                return
            loop = asyncio.get_running_loop()
            end_s = loop.time() + action.duration_us / MILLION
            met_before, is_done = self._times_met(act), False
            try:
                await self._inflict(fault.inject(act.scene), act)
                is_done = not fault.imposes or act.scene.action_id in self._rules.values()
                if is_done:
                    self.done.append(fault.name)
            except NodeUnavailable as error:  # the target has ended, or cannot be changed
                self._record(SKIPPED, "", act.details(str(error)))
                await self.note_ended()
            await asyncio.sleep(max(0.0, end_s - loop.time()))
            await self._take_back(fault.heal(act.scene), act)
            if is_done and met_before is not None and met_before == self._times_met(act):
                self.done.remove(fault.name)
                self._record(SKIPPED, act.whom, act.details("it had no effect: it was not met"))

    def _times_met(self, act: _Act) -> int | None:
        return self._back_end.times_met(act.fault.breaks, act.scene.victims)

    async def _act(self, number: int, action: Action, fault: StepFault) -> _Act | None:
        """Return the action to carry out, or None, recorded, if there is no target."""
        rng = random.Random(f"targets {self._schedule.seed} {number}")  # noqa: S311 - reproducible
        running = await self._back_end.running()
        victims, role = await self._resolve(action.target, running, rng)
        hits_clients = action.target == CLIENT
        if not victims and not hits_clients:
            reason = "no node runs" if not running else "no target node runs"
            self._record(SKIPPED, "", details_of(number, fault.name, f"{role}: {reason}"))
            return None
        scene = Scene(
            action_id=str(number),
            victims=victims,
            running=running,
            all_nodes=self._back_end.node_ids,
            rng=rng,
            hits_clients=hits_clients,
        )
        return _Act(number=number, fault=fault, scene=scene, role=role)

    async def _inflict(self, steps: Sequence[AnyStep], act: _Act) -> None:
        """Perform all steps; on failure or cancellation, still perform later lifts and resumes."""
        for place, step in enumerate(steps):
            try:
                await self._perform(step, act)
                await asyncio.sleep(step.wait_us / MILLION)
            except BaseException:
                for later in steps[place + 1 :]:
                    if isinstance(later, Lift) or _resumes(later):
                        with suppress(NodeUnavailable):
                            await self._perform(later, act)
                raise

    async def _take_back(self, steps: Sequence[AnyStep], act: _Act) -> None:
        for place, step in enumerate(steps, start=1):
            try:
                await self.note_ended()  # nodes ended by a disk fault are started, too
                if place == len(steps):
                    self._over[act.scene.action_id] = act
                await self._perform(step, act)
                await asyncio.sleep(step.wait_us / MILLION)
            except NodeUnavailable as error:
                names = _names(step.node_ids) if isinstance(step, Step) else ""
                self._record(NOT_READY, names, act.details(str(error)))
                await self.note_ended()

    async def _perform(self, step: AnyStep, act: _Act) -> None:
        match step:
            case Impose():
                await self._impose(step.rule, act)
            case Lift():
                await self._lift(step.rule_id, act)
            case Step() if step.operation in UNDOING:
                await self._undo(step, act)
            case Step():
                await self._break(step, act)

    async def _impose(self, rule: LinkRule, act: _Act) -> None:
        action_id = act.scene.action_id
        # Such as links to the other nodes of a cluster of one, or from clients to a controller.
        if not self._back_end.has_links(rule.links):
            self._record(SKIPPED, act.whom, act.details(f"{act.role}: there is no such link"))
            return
        if action_id not in self._rules.values():
            links = " ".join(map(str, rule.links))
            self._record(act.fault.name, act.whom, act.details(f"{act.role}; {links}"))
        self._rules[rule.id] = action_id
        await self._back_end.impose(rule)

    async def _lift(self, rule_id: str, act: _Act) -> None:
        action_id = self._rules.pop(rule_id, None)
        if action_id is None:
            return  # it was never in force
        await self._back_end.lift(rule_id)
        if action_id not in self._rules.values():
            self._record(f"{STOP}{act.fault.name}", act.whom, act.details())

    async def _break(self, step: Step, act: _Act) -> None:
        """Bring nodes into a bad state, except those that another action has brought there."""
        operation, action_id = step.operation, act.scene.action_id
        node_ids = step.node_ids
        if operation == "pause":  # a process that is gone cannot be paused
            node_ids = tuple(node_id for node_id in node_ids if not self._held.is_down(node_id))
        if not node_ids:
            return  # such as "the others" of a cluster of one node
        fresh = node_ids
        if operation in UNDONE_BY:
            fresh = self._held.take(operation, node_ids, action_id)
        self._record(operation, _names(node_ids), act.details(act.role))
        died = self._held.died(fresh) if operation in _KILLS else []
        try:
            if fresh:
                asked_for = await self._back_end.perform(operation, fresh, step.amount)
                if asked_for:
                    self._record(ASKED, _names(node_ids), act.details(asked_for))
        except NodeUnavailable as error:
            if operation in UNDONE_BY.keys() - MAY_BE_DONE:
                self._held.give_back(operation, error.node_ids or fresh)
            running = await self._back_end.running() if died else ()
            self._held.survived(hold for hold in died if hold.node_id in running)
            died = [hold for hold in died if hold.node_id not in running]
            raise
        else:
            if operation == "stop":  # not earlier: a paused node must be resumed, or cannot stop
                died = self._held.died(fresh)
        finally:
            self._record_died(died, act)

    def _record_died(self, died: Sequence[Hold], act: _Act) -> None:
        for hold in died:
            number = int(hold.action_id)
            fault = self._schedule.actions[number - 1].fault.name
            remark = f"ended by #{act.number} {act.fault.name}"
            self._record(hold.undo, str(hold.node_id), details_of(number, fault, remark))

    async def _undo(self, step: Step, act: _Act) -> None:
        """Bring nodes out of a bad state, except those that another action still holds there."""
        undo, action_id = step.operation, act.scene.action_id
        held = self._held.held_by(undo, step.node_ids, action_id)
        if not held:
            return
        alone = self._held.begin_to_undo(undo, held, action_id)
        try:
            tried = await asyncio.gather(
                *(self._back_end.perform(undo, (node_id,), step.amount) for node_id in alone),
                return_exceptions=True,
            )
        finally:
            own = self._held.end_undoing(undo, alone, action_id)
        for node_id, error in zip(alone, tried, strict=True):
            # Else another action has killed it while it started.
            if isinstance(error, BaseException) and node_id in own:
                raise error
        self._record(undo, _names(held), act.details())

    async def heal(self) -> bool:
        """Heal every fault; return whether all nodes run, and none ended by itself."""
        await self.note_ended()
        node_ids, operations = self._back_end.node_ids, self._back_end.operations
        for rule_id in [*self._rules]:
            await self._back_end.lift(rule_id)
        self._rules.clear()
        for undo in sorted(UNDOING - {*UNDONE_LAST} & operations):
            with suppress(NodeUnavailable):  # nodes that do not run are started next
                await self._back_end.perform(undo, node_ids)
        try:
            for undo in UNDONE_LAST:
                if undo in operations:
                    await self._back_end.perform(undo, node_ids)
        except NodeUnavailable as error:
            self._held.clear()
            self._record(NOT_READY, "", str(error))
            await self.note_ended()
            return False
        self._held.clear()
        self._record("heal", "", "every node is back")
        return not self._ended

    async def note_ended(self) -> None:
        """Record every node that does not run although no action killed it.

        A node that has given up late, when its action starts no more nodes, is started at once.
        """
        node_ids = self._back_end.node_ids
        known = {node_id for node_id in node_ids if self._held.is_down(node_id)} | self._ended
        running = await self._back_end.running()
        late: list[tuple[int, _Act]] = []
        for node_id in node_ids:
            # It may have been killed, or recorded, or have started during the call of the back end.
            seen = node_id in {*running, *known, *self._ended}
            if not seen and not self._held.is_down(node_id):
                action_id = self._note_end_of(node_id, self._back_end.last_words(node_id))
                if (act := self._over.get(action_id)) is not None:
                    late.append((node_id, act))
        for node_id, act in late:
            try:
                await self._undo(Step(operation="start", node_ids=(node_id,)), act)
            except NodeUnavailable as error:
                self._record(NOT_READY, str(node_id), act.details(str(error)))

    def _note_end_of(self, node_id: int, last_words: str) -> str:
        """Record it; return the action because of which it has given up, or ""."""
        action_id = self._held.may_end(node_id)
        if action_id is None or not _GAVE_UP.search(last_words):
            self._ended.add(node_id)
            self._record(NODE_ENDED, str(node_id), last_words)
            return ""
        self._held.take("kill", (node_id,), action_id)  # until that action starts it
        number = int(action_id)
        fault = self._schedule.actions[number - 1].fault.name
        self._record(GAVE_UP, str(node_id), details_of(number, fault, last_words))
        return action_id

    async def _resolve(
        self, target: Target, running: Sequence[int], rng: random.Random
    ) -> tuple[tuple[int, ...], str]:
        """Return the running nodes to hit, and the role, with a note if no node holds it."""
        if not isinstance(target, str):
            return tuple(node_id for node_id in target if node_id in running), "named"
        if target == CLIENT or not running:
            return (), target
        if target == ALL:
            return tuple(running), target
        if target in GROUPS:
            count = len(self._back_end.node_ids)
            size = count // 2 + 1 if target == "majority" else max(1, (count - 1) // 2)
            return tuple(sorted(rng.sample(running, min(size, len(running))))), target
        if target != "any":
            known = await self._back_end.holders(target, self._topic)
            if holders := [node_id for node_id in known if node_id in running]:
                return (rng.choice(holders),), target
        free = [node_id for node_id in running if not self._held.is_held(node_id)]
        role = target if target == "any" else f"any, as no node was {target}"
        return (rng.choice(free or running),), role


def check_schedule(schedule: Schedule, back_end: BackEnd) -> None:
    """Raise FaultUnsupported or ValueError if the back end cannot carry the schedule out."""
    can = faults_made_of(back_end.operations, back_end.effects)
    schedule.check_supported(back_end=back_end.name, can=can, why_not=back_end.why_not)
    node_ids = back_end.node_ids
    for action in schedule.actions:
        named = () if isinstance(action.target, str) else action.target
        for node_id in named:
            if node_id not in node_ids:
                raise ValueError(
                    f"the schedule names node {node_id}; the nodes are {_names(node_ids)}"
                )


def _resumes(step: AnyStep) -> bool:
    return isinstance(step, Step) and step.operation == "resume"


def _with_steps(fault: object, back_end: BackEnd) -> StepFault:
    if not isinstance(fault, StepFault):
        can = faults_made_of(back_end.operations, back_end.effects)
        raise FaultUnsupported(type(fault).__name__, back_end.name, can)
    return fault

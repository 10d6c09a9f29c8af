"""Carries out a schedule through a back end, and heals every fault at the end.

Each action is a task of its own, so faults may overlap; the actions of a paced schedule wait until
the nodes of earlier ones are back (`pace`). A role is resolved at the moment of the
fault, from the cluster's state at that time. A node that ends without a fault is recorded as
`node-ended`: a finding, for any reason. A node whose disk a fault has broken may give up and name
the error; then it is down because of that fault.
"""

import asyncio
import random
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final

from quorumlog.chaos.back_ends.back_end import (
    BackEnd,
    BackEndFailed,
    NodeUnavailable,
    check_schedule,
)
from quorumlog.chaos.faults.fault import (
    ALL,
    CLIENT,
    MAY_BE_DONE,
    MILLION,
    UNDOING,
    UNDONE_BY,
    UNDONE_LAST,
    AnyStep,
    Impose,
    Lift,
    Outside,
    Scene,
    Step,
    StepFault,
)
from quorumlog.chaos.faults.links import Answer, LinkRule
from quorumlog.chaos.faults.node_groups import hit_group, is_group
from quorumlog.chaos.faults.registry import FaultUnsupported, faults_made_of
from quorumlog.chaos.faults.rows import details_of
from quorumlog.chaos.held_nodes import HeldNodes, Hold
from quorumlog.chaos.pace import Extension, Pace, at_once, claim_of
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
_PATIENCE_S: Final = 30.0  # with nodes that should come back: for one action, and for a return
_POLL_S: Final = 0.1
STOP: Final = "stop-"  # before the name of a fault: the row that lifts its rules on links


def _names(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


@dataclass(slots=True, kw_only=True, eq=False)
class _ActionInProgress:
    """One action of the schedule, from its first step until the run ends."""

    number: int
    fault: StepFault
    scene: Scene
    role: str  # the role in the schedule, and whether a node held it
    rule_ids: set[str] = field(default_factory=set)  # its rules in force
    has_imposed: bool = False  # a rule was in force
    acts_outside: bool = False  # an act on a thing beside the nodes is in force
    has_missed: bool = False  # no request met its rule
    is_over: bool = False  # it starts no more nodes

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
        self,
        back_end: BackEnd,
        schedule: Schedule,
        *,
        topic: str,
        record: Record,
        extension: Extension | None = None,
    ) -> None:
        check_schedule(schedule, back_end)
        self._back_end: Final = back_end
        self._schedule: Final = schedule
        self._topic: Final = topic
        self._record: Final = record
        self.done: Final[list[str]] = []  # the faults that were carried out
        self._ended: Final[set[int]] = set()
        self._held: Final = HeldNodes[_ActionInProgress]()
        self._acts: Final[list[_ActionInProgress]] = []
        self._destroying: Final = asyncio.Lock()  # one copy of the data is destroyed at a time
        self._extension: Final = extension or Extension()
        limit = self._extension.at_once or at_once(len(back_end.node_ids))
        self._pace: Final = Pace(limit=limit, latest_us=self._extension.latest_us)
        self._started_s = 0.0
        self.extended: Final[list[Action]] = []  # the actions of the extension that were due
        self.is_breaking = False  # from the first action until the last is over

    async def run(self) -> None:
        """Perform the schedule; return when its last fault is healed."""
        loop = asyncio.get_running_loop()
        self._started_s = loop.time()
        async with asyncio.TaskGroup() as actions:
            for number, action in enumerate(self._schedule.actions, start=1):
                if self._schedule.paced:
                    await self._until(self._pace.due_us(action.t_us))
                    await self._begin_in_pace(number, action, actions)
                else:
                    await self._until(action.t_us)
                    actions.create_task(self._carry_out(number, action))
            if self._schedule.paced:
                await self._extend(actions)
        self.is_breaking = False

    async def _until(self, t_us: int) -> None:
        """Wait until this time, counted from the start."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._started_s + t_us / MILLION - loop.time()))

    def _now_us(self) -> int:
        return round((asyncio.get_running_loop().time() - self._started_s) * MILLION)

    async def _extend(self, actions: asyncio.TaskGroup) -> None:
        """Begin the actions of the extension while it goes on."""
        more, first = self._extension, len(self._schedule.actions) + 1
        for number, action in enumerate(more.actions, start=first):
            while more.goes_on() and self._now_us() < self._pace.due_us(action.t_us):  # noqa: ASYNC110 - a count has no event
                await asyncio.sleep(_POLL_S)
            if not more.goes_on() or self._pace.is_over(self._now_us()):
                return
            self.extended.append(action)
            await self._begin_in_pace(number, action, actions)

    async def _begin_in_pace(self, number: int, action: Action, actions: asyncio.TaskGroup) -> None:
        """Wait until the action may begin, and begin it; record it as skipped if it may not."""
        fault = _with_steps(action.fault, self._back_end)
        patience_us = self._now_us() + round(_PATIENCE_S * MILLION)
        why = ""
        while not self._pace.is_over(self._now_us()):
            await self.note_ended()
            if not self._pace.are_away(await self._back_end.running(), action.target):
                act = await self._act(number, action, fault, avoid=self._pace.taken)
                if act is None:
                    return
                claim = claim_of(fault, act.scene.victims, action.target)
                why = self._pace.why_not(claim, action.t_us, self._now_us())
                if not why:
                    self._pace.begin(number, claim, action.t_us, self._now_us())
                    actions.create_task(self._carry_out_in_pace(number, action, act))
                    return
            if self._now_us() > patience_us:
                break
            await asyncio.sleep(_POLL_S)
        self._record(SKIPPED, "", details_of(number, fault.name, why or "no time is left"))

    async def _carry_out_in_pace(self, number: int, action: Action, act: _ActionInProgress) -> None:
        """Carry out an action that has begun, until its nodes have caught up."""
        try:
            await self._perform_action(action, act)
            if act.fault.takes_nodes():
                await self._until_back(act.scene.victims)
        finally:
            self._pace.end(number, self._now_us())

    async def _until_back(self, node_ids: Collection[int]) -> None:
        """Wait until those of the nodes that run have caught up; give up after a while."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _PATIENCE_S
        while loop.time() < deadline_s:
            running = {*await self._back_end.running()} & {*node_ids}
            if not running & {*await self._back_end.behind(self._topic)}:
                return
            await asyncio.sleep(_POLL_S)

    async def _carry_out(self, number: int, action: Action) -> None:
        fault = _with_steps(action.fault, self._back_end)
        async with self._destroying if fault.destroys else nullcontext():
            await self.note_ended()
            act = await self._act(number, action, fault)
            if act is not None:
                await self._perform_action(action, act)

    async def _perform_action(self, action: Action, act: _ActionInProgress) -> None:
        """Inflict the fault, wait for its duration, and take it back."""
        fault, loop = act.fault, asyncio.get_running_loop()
        self._acts.append(act)
        self.is_breaking = True
        end_s = loop.time() + action.duration_us / MILLION
        met_before, is_done = self._times_met(act), False
        try:
            await self._inflict(fault.inject(act.scene), act)
            is_done = not fault.imposes or act.has_imposed
            if is_done:
                self.done.append(fault.name)
        except NodeUnavailable as error:  # the target has ended, or cannot be changed
            self._record(SKIPPED, "", act.details(str(error)))
            await self.note_ended()
        await asyncio.sleep(max(0.0, end_s - loop.time()))
        await self._take_back(fault.heal(act.scene), act)
        was_met = met_before is None or met_before != self._times_met(act)
        if is_done and (act.has_missed or not was_met):
            self.done.remove(fault.name)
            self._record(SKIPPED, act.whom, act.details("it had no effect: it was not met"))

    def _times_met(self, act: _ActionInProgress) -> int | None:
        return self._back_end.times_met(act.fault.breaks, act.scene.victims)

    async def _act(
        self, number: int, action: Action, fault: StepFault, *, avoid: Collection[int] = frozenset()
    ) -> _ActionInProgress | None:
        """Return the action to carry out, or None, recorded, if there is no target."""
        rng = random.Random(f"targets {self._schedule.seed} {number}")  # noqa: S311 - reproducible
        running = await self._back_end.running()
        victims, role = await self._resolve(action.target, running, rng, avoid)
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
        return _ActionInProgress(number=number, fault=fault, scene=scene, role=role)

    async def _inflict(self, steps: Sequence[AnyStep], act: _ActionInProgress) -> None:
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

    async def _take_back(self, steps: Sequence[AnyStep], act: _ActionInProgress) -> None:
        for place, step in enumerate(steps, start=1):
            try:
                await self.note_ended()  # nodes ended by a disk fault are started, too
                if place == len(steps):
                    act.is_over = True
                await self._perform(step, act)
                await asyncio.sleep(step.wait_us / MILLION)
            except NodeUnavailable as error:
                names = _names(step.node_ids) if isinstance(step, Step) else ""
                self._record(NOT_READY, names, act.details(str(error)))
                await self.note_ended()

    async def _perform(self, step: AnyStep, act: _ActionInProgress) -> None:
        match step:
            case Impose():
                await self._impose(step.rule, act)
            case Lift():
                await self._lift(step.rule_id, act)
            case Outside():
                await self._act_outside(step, act)
            case Step() if step.operation in UNDOING:
                await self._undo(step, act)
            case Step():
                await self._break(step, act)

    async def _impose(self, rule: LinkRule, act: _ActionInProgress) -> None:
        # Such as links to the other nodes of a cluster of one, or from clients to a controller.
        if not self._back_end.has_links(rule.links):
            self._record(SKIPPED, act.whom, act.details(f"{act.role}: there is no such link"))
            return
        if not act.rule_ids:
            links = " ".join(map(str, rule.links))
            self._record(act.fault.name, act.whom, act.details(f"{act.role}; {links}"))
        act.rule_ids.add(rule.id)
        act.has_imposed = True
        await self._back_end.impose(rule)

    async def _lift(self, rule_id: str, act: _ActionInProgress) -> None:
        if rule_id not in act.rule_ids:
            return  # it was never in force
        act.rule_ids.remove(rule_id)
        await self._back_end.lift(rule_id)
        remark = ""
        if Answer in act.fault.imposes:
            tally = (await self._back_end.tallies()).get(rule_id, {"answered": 0, "matched": 0})
            remark = f"{tally['answered']} of {tally['matched']} matching requests answered"
            act.has_missed = not tally["answered"]
        if not act.rule_ids:
            self._record(f"{STOP}{act.fault.name}", act.whom, act.details(remark))

    async def _act_outside(self, step: Outside, act: _ActionInProgress) -> None:
        if not act.acts_outside:
            if step.ends:
                return  # it was never inflicted
            act.acts_outside = True
            self._record(act.fault.name, "", act.details())
        try:
            await step.act()
        except NodeUnavailable:
            raise
        except Exception as error:  # whatever the code of a user's fault raises
            raise BackEndFailed(f"fault {act.fault.name}: {error!r}") from error
        if step.ends:
            act.acts_outside = False
            self._record(f"{STOP}{act.fault.name}", "", act.details())

    async def _break(self, step: Step, act: _ActionInProgress) -> None:
        """Bring nodes into a bad state, except those that another action has brought there."""
        operation, node_ids = step.operation, step.node_ids
        if operation == "pause":  # a process that is gone cannot be paused
            node_ids = tuple(node_id for node_id in node_ids if not self._held.is_down(node_id))
        if not node_ids:
            return  # such as "the others" of a cluster of one node
        fresh = node_ids
        if operation in UNDONE_BY:
            fresh = self._held.take(operation, node_ids, act)
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

    def _record_died(self, died: Sequence[Hold[_ActionInProgress]], act: _ActionInProgress) -> None:
        for hold in died:
            remark = f"ended by #{act.number} {act.fault.name}"
            self._record(hold.undo, str(hold.node_id), hold.action.details(remark))

    async def _undo(self, step: Step, act: _ActionInProgress) -> None:
        """Bring nodes out of a bad state, except those that another action still holds there."""
        undo = step.operation
        held = self._held.held_by(undo, step.node_ids, act)
        if not held:
            return
        alone = self._held.begin_to_undo(undo, held, act)
        try:
            tried = await asyncio.gather(
                *(self._back_end.perform(undo, (node_id,), step.amount) for node_id in alone),
                return_exceptions=True,
            )
        finally:
            own = self._held.end_undoing(undo, alone, act)
        for node_id, error in zip(alone, tried, strict=True):
            # Else another action has killed it while it started.
            if isinstance(error, BaseException) and node_id in own:
                raise error
        self._record(undo, _names(held), act.details())

    async def heal(self) -> bool:
        """Heal every fault; return whether all nodes run, and none ended by itself."""
        await self.note_ended()
        node_ids, operations = self._back_end.node_ids, self._back_end.operations
        for act in self._acts:
            for rule_id in sorted(act.rule_ids):
                await self._back_end.lift(rule_id)
            act.rule_ids.clear()
            for step in act.fault.heal(act.scene) if act.acts_outside else ():
                if isinstance(step, Outside):
                    await self._act_outside(step, act)
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
        await self.note_ended()  # a node may give up late, while others start
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
        late: list[tuple[int, _ActionInProgress]] = []
        for node_id in node_ids:
            # It may have been killed, or recorded, or have started during the call of the back end.
            seen = node_id in {*running, *known, *self._ended}
            if not seen and not self._held.is_down(node_id):
                act = self._note_end_of(node_id, self._back_end.last_words(node_id))
                if act is not None and act.is_over:
                    late.append((node_id, act))
        for node_id, act in late:
            try:
                await self._undo(Step(operation="start", node_ids=(node_id,)), act)
            except NodeUnavailable as error:
                self._record(NOT_READY, str(node_id), act.details(str(error)))

    def _note_end_of(self, node_id: int, last_words: str) -> _ActionInProgress | None:
        """Record it; return the action because of which the node has given up, or None."""
        act = self._held.may_end(node_id)
        if act is None or not _GAVE_UP.search(last_words):
            self._ended.add(node_id)
            self._record(NODE_ENDED, str(node_id), last_words)
            return None
        self._held.take("kill", (node_id,), act)  # until that action starts it
        self._record(GAVE_UP, str(node_id), act.details(last_words))
        return act

    async def _resolve(
        self, target: Target, running: Sequence[int], rng: random.Random, avoid: Collection[int]
    ) -> tuple[tuple[int, ...], str]:
        """Return the running nodes to hit, and the role, with a note if no node holds it.

        Nodes of `avoid` are chosen only if no other node has the role.
        """
        if not isinstance(target, str):
            return tuple(node_id for node_id in target if node_id in running), "named"
        if target == CLIENT or not running:
            return (), target
        if target == ALL:
            return tuple(running), target
        if is_group(target):
            count, racks = len(self._back_end.node_ids), self._back_end.racks
            return hit_group(target, count, racks, running, avoid=avoid, rng=rng)
        if target != "any":
            known = await self._back_end.holders(target, self._topic)
            if holders := [node_id for node_id in known if node_id in running]:
                free = [node_id for node_id in holders if node_id not in avoid]
                return (rng.choice(free or holders),), target
        free = [
            node_id
            for node_id in running
            if not self._held.is_held(node_id) and node_id not in avoid
        ]
        role = target if target == "any" else f"any, as no node was {target}"
        return (rng.choice(free or running),), role


def _resumes(step: AnyStep) -> bool:
    return isinstance(step, Step) and step.operation == "resume"


def _with_steps(fault: object, back_end: BackEnd) -> StepFault:
    if not isinstance(fault, StepFault):
        can = faults_made_of(back_end.operations, back_end.effects)
        raise FaultUnsupported(type(fault).__name__, back_end.name, can)
    return fault

"""The faults that a nemesis has inflicted by hand, until they are mended."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from quorumlog.chaos.back_ends.back_end import BackEnd
from quorumlog.chaos.control.acts import NodeIds, NoSuchLink, Target
from quorumlog.chaos.control.error_rules import ErrorRules
from quorumlog.chaos.faults.admin import Grow
from quorumlog.chaos.faults.fault import (
    UNDONE_BY,
    AnyStep,
    Impose,
    Lift,
    Outside,
    Scene,
    Step,
    StepFault,
)
from quorumlog.chaos.faults.node_groups import is_target
from quorumlog.chaos.faults.registry import configured_fault
from quorumlog.chaos.faults.rows import details_of
from quorumlog.chaos.nemesis import STOP

Record = Callable[[str, str, str], object]
"""Called with (f, node, details): writes a row of the nemesis into a history."""
HeldNodes = Callable[[str], Collection[int]]
"""Returns the nodes that verbs hold in the state that an operation ends."""

_OF_PROCESSES: Final = frozenset({"resume", "feed"})  # a dead node needs none of them
_OF_CLUSTERS: Final = frozenset({"calm", "release", "unlimit", "add_voter"})  # a majority does them


class _Imposed(NamedTuple):
    """A lasting fault. `owner`: the block that ends it, or an object of its own."""

    fault: StepFault
    scene: Scene
    owner: object


def fault_by_hand(name: str, target: Target, parameters: Mapping[str, int | str]) -> StepFault:
    """Return a fault for a target. Raises ValueError."""
    fault = configured_fault(name, parameters)
    if fault.breaks == Grow.breaks:
        raise ValueError(
            "grow adds a partition to the topic of a run's workload; use `quorumlog topics grow`"
        )
    if isinstance(target, str) and not fault.imposes and not is_target(target, fault.targets):
        raise ValueError(
            f"the target of {fault.name} is {', '.join(fault.targets)} or node ids: not {target}"
        )
    return fault


class InflictedFaults:
    """The faults in force, by their numbers in the history.

    Faults may overlap: a node that two of them hold in a state leaves it with the end of the last.
    """

    def __init__(
        self, back_end: BackEnd, rules: ErrorRules, record: Record, held_by_verbs: HeldNodes
    ) -> None:
        self._back_end: Final = back_end
        self._rules: Final = rules
        self._record: Final = record
        self._held_by_verbs: Final = held_by_verbs
        self._in_force: Final[dict[int, _Imposed]] = {}

    @property
    def paused(self) -> frozenset[int]:
        """The nodes that a fault has paused."""
        return frozenset(
            node_id
            for fault, scene, _ in self._in_force.values()
            if fault.breaks == "pause"
            for node_id in scene.victims
        )

    def require_supported(self, fault: StepFault) -> None:
        """Raise ValueError for a fault that the back end lacks an operation or an effect for."""
        lacking = [f"operation {name}" for name in sorted(fault.needs - self._back_end.operations)]
        effects = fault.imposes - self._back_end.effects
        lacking += sorted(f"effect {kind.__name__} on links" for kind in effects)
        if lacking:
            reason = self._back_end.why_not(fault.name) or f"there is no {lacking[0]}"
            raise ValueError(f"{fault.name} cannot be inflicted here: {reason}")

    def steps_of(self, fault: StepFault, scene: Scene) -> Sequence[AnyStep]:
        """Return the steps of a fault. Raises ValueError or NoSuchLink if it cannot begin here."""
        self.require_supported(fault)
        steps = [step for step in fault.inject(scene) if self._has_effect(step)]
        if not steps:
            hit = ",".join(scene.parties) or "nothing"
            raise NoSuchLink(f"{fault.name} on {hit}: this cluster has no such link")
        return steps

    def _has_effect(self, step: AnyStep) -> bool:
        return not isinstance(step, Impose) or self._back_end.has_links(step.rule.links)

    async def begin(
        self, number: int, fault: StepFault, scene: Scene, role: str, owner: object
    ) -> None:
        """Carry out the steps that begin a fault. Raises the errors of the back end."""
        steps = self.steps_of(fault, scene)
        rules = [step.rule for step in steps if isinstance(step, Impose)]
        about = f"{role}; {' '.join(map(str, rules[0].links))}" if rules else role
        self._record(fault.name, ",".join(scene.parties), details_of(number, fault.name, about))
        self._in_force[number] = _Imposed(fault, scene, owner)
        await self._perform(steps)
        self._rules.note_imposed(fault, rules)

    def holding(self, undo: str) -> frozenset[int]:
        """Return the nodes that faults hold in the state that this operation ends."""
        return frozenset(
            node_id
            for one in self._in_force.values()
            for step in one.fault.heal(one.scene)
            if isinstance(step, Step) and step.operation == undo
            for node_id in step.node_ids
        )

    async def end(self, owner: object = None, *, needs_no_majority: bool = False) -> NodeIds:
        """End the faults of this owner; None: of all owners. Returns their nodes.

        All faults are tried; then the first error is raised. A fault whose end has failed stays in
        force. needs_no_majority: only the faults whose ends are no requests to the cluster.
        """
        ended: set[int] = set()
        failed: list[Exception] = []
        for number, one in [*self._in_force.items()]:
            of_other = owner is not None and one.owner is not owner
            if of_other or (needs_no_majority and _needs_majority(one)):
                continue
            try:
                await self._end(number, one)
            except Exception as error:  # noqa: BLE001 - raised when all were tried
                failed.append(error)
            ended.update(one.scene.victims)
        if failed:
            raise failed[0]
        return tuple(sorted(ended))

    async def _end(self, number: int, one: _Imposed) -> None:
        fault, scene, _ = one
        del self._in_force[number]
        try:
            await self._perform(await self._ends_of(one))
        except BaseException:
            self._in_force[number] = one
            raise
        await self._rules.end(fault)
        details = details_of(number, fault.name)
        self._record(f"{STOP}{fault.name}", ",".join(scene.parties), details)

    async def _ends_of(self, one: _Imposed) -> Sequence[AnyStep]:
        """Return the steps that end a fault, which is no longer in force, beside all others."""
        steps: list[AnyStep] = []
        for step in one.fault.heal(one.scene):
            if not isinstance(step, Step):
                steps.append(step)
                continue
            undo = step.operation
            held = {*self.holding(undo), *self._held_by_verbs(undo)}
            able = await self._back_end.running() if undo in _OF_PROCESSES else step.node_ids
            free = tuple(node for node in step.node_ids if node not in held and node in able)
            steps += [replace(step, node_ids=free)] if free else []
            steps += self._again(undo, held.intersection(step.node_ids))
        return steps

    def _again(self, undo: str, node_ids: Collection[int]) -> Iterator[Step]:
        """Yield the steps that give nodes the amounts of the other faults that hold them."""
        if undo in _OF_CLUSTERS:
            return
        for fault, scene, _ in self._in_force.values():
            if UNDONE_BY.get(fault.breaks) != undo:
                continue
            for step in fault.inject(scene):
                held = tuple(node_id for node_id in scene.victims if node_id in node_ids)
                if isinstance(step, Step) and step.amount and held:
                    yield replace(step, node_ids=held)

    async def _perform(self, steps: Iterable[AnyStep]) -> None:
        for step in steps:
            match step:
                case Step():
                    await self._back_end.perform(step.operation, step.node_ids, step.amount)
                case Impose(rule=rule):
                    await self._back_end.impose(rule)
                case Lift(rule_id=rule_id):
                    await self._back_end.lift(rule_id)
                case Outside(act=act):
                    await act()
            await asyncio.sleep(step.wait_us / 1_000_000)


def _needs_majority(one: _Imposed) -> bool:
    steps = one.fault.heal(one.scene)
    return any(isinstance(step, Step) and step.operation in _OF_CLUSTERS for step in steps)

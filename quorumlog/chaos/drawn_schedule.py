"""Draws a schedule from a seed: faults that overlap, or that alternate with pauses.

A schedule stays within the faults that a cluster is built to survive: no two faults that destroy
copies of data overlap, and at most a minority of the nodes is away at once, except by a fault that
hits more by definition. The schedule is paced: see `pace`.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Final, cast

from quorumlog.chaos.faults.fault import ROLES, StepFault
from quorumlog.chaos.faults.node_groups import is_rack
from quorumlog.chaos.faults.registry import fault_and_role
from quorumlog.chaos.pace import at_once, means_to
from quorumlog.chaos.schedule import Action, Option, Schedule, Target

_QUIET_MS: Final = 1_500  # between faults that alternate: recovery must be possible
_MEAN_GAP_MS: Final = 500  # drawn in addition
_MEAN_ARRIVAL_MS: Final = 2_000  # from one fault to the next, where they overlap
_RETURN_MS: Final = 2_000  # a killed node starts and catches up, and the cluster serves meanwhile
_MILD_MAX: Final = 2  # at once, of faults that leave the nodes at work
_CALM_EVERY: Final = 4  # after that many overlapping faults, all end and the cluster recovers


def draw_schedule(
    seed: int,
    *,
    faults: Sequence[str],
    duration_ms: int,
    overlap: bool = False,
    nodes: int = 3,
    workload: str = "",
    options: Mapping[str, Option] | None = None,
) -> Schedule:
    """Draw a schedule that fits `duration_ms`. The same arguments give the same schedule.

    Faults take turns, and so do roles, in orders drawn per seed: a short run has each of them. A
    fault that names its role, as `kill:group-coordinator`, always hits that role. With `overlap`, a
    fault may begin while others last, as long as a majority of `nodes` stays. A longer duration
    adds actions at the end alone. Raises ValueError for a fault that consists of no steps, or that
    has a parameter without a default.
    """
    kinds = [_drawable(name) for name in faults]
    rng = random.Random(seed)  # noqa: S311 - a schedule must be reproducible, not secret
    turns = itertools.cycle(rng.sample(kinds, len(kinds)))
    roles = itertools.cycle(rng.sample(ROLES, len(ROLES)))
    actions: list[Action] = []
    now_ms = rng.randint(500, 1_500)
    while kinds:
        kind, role = next(turns)
        lasts_ms = rng.randint(*kind.drawn_duration_ms)
        target = role or (next(roles) if {*ROLES} <= {*kind.targets} else kind.targets[0])
        if overlap:
            now_ms = max(now_ms, _free_from_ms(actions, kind, target, nodes))
        if now_ms + lasts_ms > duration_ms:
            break
        action = Action(
            t_us=now_ms * 1000, fault=kind(), target=target, duration_us=lasts_ms * 1000
        )
        actions.append(action)
        if overlap and len(actions) % _CALM_EVERY:
            now_ms += int(rng.expovariate(1 / _MEAN_ARRIVAL_MS))
        else:
            end_us = max(action.end_us for action in actions)
            now_ms = end_us // 1000 + _QUIET_MS + int(rng.expovariate(1 / _MEAN_GAP_MS))
    return Schedule(
        seed=seed,
        duration_us=duration_ms * 1000,
        actions=tuple(actions),
        workload=workload,
        options=options or {},
        paced=True,
    )


def _drawable(text: str) -> tuple[type[StepFault], str | None]:
    kind, role = fault_and_role(text)
    for parameter in fields(kind):
        if parameter.default is MISSING:
            raise ValueError(f"fault {kind.name} needs {parameter.name}: give it in a --schedule")
    return kind, role


def _free_from_ms(
    actions: Sequence[Action], kind: type[StepFault], target: Target, nodes: int
) -> int:
    """Return when a fault of this kind may begin, besides those drawn so far."""
    if not kind.takes_nodes():
        mild = [(action.end_us, 1) for action in actions if not _fault(action).takes_nodes()]
        return -(-_free_us(mild, _MILD_MAX - 1) // 1000)
    limit = at_once(nodes)
    taking = [action for action in actions if _fault(action).takes_nodes()]
    away = [(action.end_us, _weight(_fault(action), action.target, limit)) for action in taking]
    free_us = _free_us(away, max(0, limit - _weight(kind, target, limit)))
    free_us += _RETURN_MS * 1000 if free_us else 0
    if kind.destroys:
        ends_us = [action.end_us for action in taking if _fault(action).destroys]
        free_us = max([free_us, *(end_us + _QUIET_MS * 1000 for end_us in ends_us)])
    return -(-free_us // 1000)


def _fault(action: Action) -> StepFault:
    return cast(StepFault, action.fault)  # no other kind is drawn


def _weight(fault: StepFault | type[StepFault], target: Target, limit: int) -> int:
    """Return how many nodes a fault takes; `limit`: as many as may be away, or more."""
    takes_several = target == "minority" or is_rack(target)
    return limit if takes_several or means_to(fault, target) else 1


def _free_us(away: Sequence[tuple[int, int]], most: int) -> int:
    """Return when at most this weight is left of faults (end, weight) that have begun."""
    left, free_us = sum(weight for _, weight in away), 0
    for end_us, weight in sorted(away):
        if left <= most:
            break
        left, free_us = left - weight, end_us
    return free_us

"""Draws a schedule from a seed: faults that overlap, or that alternate with pauses.

A schedule stays within the faults that a cluster is built to survive: no two faults that destroy
copies of data overlap.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Final

from quorumlog.chaos.faults.fault import ROLES, StepFault
from quorumlog.chaos.faults.registry import fault_and_role
from quorumlog.chaos.schedule import Action, Option, Schedule

_QUIET_MS: Final = 1_500  # between faults that alternate: recovery must be possible
_MEAN_GAP_MS: Final = 500  # drawn in addition
_MEAN_ARRIVAL_MS: Final = 2_000  # from one fault to the next, where they overlap
_AT_ONCE_MAX: Final = 3
_CALM_EVERY: Final = 4  # after that many overlapping faults, all end and the cluster recovers


def draw_schedule(
    seed: int,
    *,
    faults: Sequence[str],
    duration_ms: int,
    overlap: bool = False,
    workload: str = "",
    options: Mapping[str, Option] | None = None,
) -> Schedule:
    """Draw a schedule that fits `duration_ms`. The same arguments give the same schedule.

    Faults take turns, and so do roles, in orders drawn per seed: a short run has each of them. A
    fault that names its role, as `kill:group-coordinator`, always hits that role. With `overlap`, a
    fault may begin while others last, at most _AT_ONCE_MAX of them. Raises ValueError for a fault
    that consists of no steps, or that has a parameter without a default.
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
        if overlap:
            now_ms = max(now_ms, _free_from_ms(actions, kind))
        if now_ms + lasts_ms > duration_ms:
            break
        target = role or (next(roles) if {*ROLES} <= {*kind.targets} else kind.targets[0])
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
    )


def _drawable(text: str) -> tuple[type[StepFault], str | None]:
    kind, role = fault_and_role(text)
    for parameter in fields(kind):
        if parameter.default is MISSING:
            raise ValueError(f"fault {kind.name} needs {parameter.name}: give it in a --schedule")
    return kind, role


def _free_from_ms(actions: Sequence[Action], kind: type[StepFault]) -> int:
    """Return when a fault of this kind may begin, besides those drawn so far."""
    ends_us = sorted((action.end_us for action in actions), reverse=True)
    free_us = ends_us[_AT_ONCE_MAX - 1] if len(ends_us) >= _AT_ONCE_MAX else 0
    if kind.destroys:
        destroying = [a for a in actions if isinstance(a.fault, StepFault) and a.fault.destroys]
        free_us = max([free_us, *(action.end_us + _QUIET_MS * 1000 for action in destroying)])
    return -(-free_us // 1000)

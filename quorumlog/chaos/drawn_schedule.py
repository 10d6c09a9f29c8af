"""Draws a schedule from a seed: faults take turns, with pauses in which the cluster recovers."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Final

from quorumlog.chaos.faults.fault import ROLES
from quorumlog.chaos.faults.registry import process_fault
from quorumlog.chaos.schedule import Action, Option, Schedule

_QUIET_MS: Final = 1_500  # from the end of one fault to the next: recovery must be possible
_MEAN_GAP_MS: Final = 500  # drawn in addition


def draw_schedule(
    seed: int,
    *,
    faults: Sequence[str],
    duration_ms: int,
    workload: str = "",
    options: Mapping[str, Option] | None = None,
) -> Schedule:
    """Draw a schedule that fits `duration_ms`. The same arguments give the same schedule.

    Faults take turns, and so do roles, in orders drawn per seed: a short run meets each of them.
    None overlaps the next, so a majority always lives. Raises ValueError for a fault that consists
    of no operations on processes.
    """
    kinds = [process_fault(name) for name in faults]
    rng = random.Random(seed)  # noqa: S311 - a schedule must be reproducible, not secret
    turns = itertools.cycle(rng.sample(kinds, len(kinds)))
    roles = itertools.cycle(rng.sample(ROLES, len(ROLES)))
    actions: list[Action] = []
    now_ms = rng.randint(500, 1_500)
    while kinds:
        kind = next(turns)
        lasts_ms = rng.randint(*kind.drawn_duration_ms)
        if now_ms + lasts_ms > duration_ms:
            break
        target = next(roles) if kind.targets == ROLES else kind.targets[0]
        actions.append(
            Action(t_us=now_ms * 1000, fault=kind(), target=target, duration_us=lasts_ms * 1000)
        )
        now_ms += lasts_ms + _QUIET_MS + int(rng.expovariate(1 / _MEAN_GAP_MS))
    return Schedule(
        seed=seed,
        duration_us=duration_ms * 1000,
        actions=tuple(actions),
        workload=workload,
        options=options or {},
    )

"""Makes a failing schedule small: leaves out faults while the run still breaks the same rule."""

from collections.abc import Callable
from dataclasses import replace

from quorumlog.chaos.schedule import Schedule


def shrink_schedule(schedule: Schedule, still_fails: Callable[[Schedule], bool]) -> Schedule:
    """Return the schedule with as few actions as delta debugging (ddmin) finds."""
    actions = list(schedule.actions)
    chunk = max(1, len(actions) // 2)
    while actions:
        reduced = False
        for start in range(0, len(actions), chunk):
            fewer = actions[:start] + actions[start + chunk :]
            if still_fails(replace(schedule, actions=tuple(fewer))):
                actions, reduced = fewer, True
                break
        if not reduced and chunk == 1:
            break
        if not reduced:
            chunk = max(1, chunk // 2)
    return replace(schedule, actions=tuple(actions))

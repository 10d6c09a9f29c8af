"""Draws the settings of a seed for whole nodes, runs them, and shrinks failing schedules."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from quorumlog.chaos.faults.node_groups import racks_of, require_rack
from quorumlog.chaos.faults.registry import faults_made_of
from quorumlog.chaos.mutants.registry import mutant_called
from quorumlog.chaos.node_simulation.forked import run_one
from quorumlog.chaos.node_simulation.settings import (
    DEFAULT_OPTIONS,
    OPTIONS_OF,
    NodesResult,
    NodesSettings,
)
from quorumlog.chaos.node_simulation.swarm import draw_swarm
from quorumlog.chaos.node_simulation.target import SimulatedMachines
from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.simulation.kernel.swarm import shrink_schedule
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import options_of
from quorumlog.cluster import ClusterShape


def settings_of(
    seed: int,
    *,
    duration_ms: int = 12_000,
    workload: str = "append_read",
    options: Mapping[str, Option] | None = None,
    faults: Collection[str] | None = None,
    shape: ClusterShape | None = None,
    config: Mapping[str, str] | None = None,
    mutant: str | None = None,
) -> NodesSettings:
    """Return the settings of a seed. `faults`: exactly these kinds; None: a choice by the seed.

    Raises ValueError for an unknown fault, workload, option or mutant.
    """
    mutant_called(mutant)
    kind = find_workload(workload)
    known = options_of(kind.read_options({}))
    defaults = {**DEFAULT_OPTIONS, **OPTIONS_OF.get(workload, {})}
    given = {name: value for name, value in defaults.items() if name in known}
    schedule = draw_swarm(
        seed,
        faults=faults,
        duration_ms=duration_ms,
        workload=workload,
        options=options_of(kind.read_options({**given, **(options or {})})),
        has_racks=shape is not None and bool(shape.racks),
    )
    _require_steps(schedule)
    return NodesSettings(
        schedule=schedule, shape=shape or ClusterShape(), config=config or {}, mutant=mutant
    )


def _require_steps(schedule: Schedule) -> None:
    """Raise FaultUnsupported for a fault that simulated machines cannot carry out."""
    kinds = {type(action.fault) for action in schedule.actions}
    can = faults_made_of(SimulatedMachines.operations, SimulatedMachines.effects, kinds)
    schedule.check_supported(back_end=SimulatedMachines.name, can=can)


def simulate_nodes(
    seed: int, *, schedule: Schedule | None = None, until_violated: bool = False, **given: Any
) -> NodesResult:
    """Run one seed, or one schedule, in a process of its own. Equal arguments, equal result.

    until_violated: end at the first violated rule, which shows a planted bug. given: the other
    arguments of `settings_of`.
    Raises ValueError for unknown names, as `settings_of`, and RunFailed without a result.
    """
    settings = settings_of(seed, **given)
    if schedule is not None:
        settings = replayed(settings, schedule)
    return run_one(replace(settings, until_violated=until_violated))


def replayed(settings: NodesSettings, schedule: Schedule) -> NodesSettings:
    """Return the settings with this schedule. Raises ValueError if nodes cannot run it."""
    find_workload(schedule.workload).read_options(schedule.options)
    _require_steps(schedule)
    nodes = set(settings.roles)
    for action in schedule.actions:
        require_rack(action.target, racks_of(settings.racks))
        if not isinstance(action.target, str) and not nodes.issuperset(action.target):
            raise ValueError(f"the schedule names other nodes than {sorted(nodes)}")
    return replace(settings, schedule=schedule)


def shrink(settings: NodesSettings, result: NodesResult) -> Schedule:
    """Remove as many faults as possible while the run still fails in the same way."""

    def still_fails(schedule: Schedule) -> bool:
        again = run_one(
            replace(settings, schedule=schedule, until_violated=bool(result.violations))
        )
        return _way(again) == _way(result)

    return shrink_schedule(result.schedule, still_fails)


def _way(result: NodesResult) -> tuple[str, ...]:
    """Return the way a run fails: its first violated rule, or its first severe anomaly."""
    rules = [violation.partition(":")[0] for violation in result.violations[:1]]
    return tuple(rules or result.anomalies[:1])

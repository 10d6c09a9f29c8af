"""One seed, one run, one result; and the smallest schedule that still fails."""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from quorumlog.chaos.simulation.worlds.quorum.faults import FAULTS, Fault, Schedule, draw_schedule
from quorumlog.chaos.simulation.worlds.quorum.mutants import MUTANT_CLASSES
from quorumlog.chaos.simulation.worlds.quorum.oracle import Violation
from quorumlog.chaos.simulation.worlds.quorum.world import Simulator
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core.quorum import Quorum


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What came of one run. `simulated_ms` includes the calm at the end.

    `trace`: if a rule broke, the last steps before, for a person; the broken one is the last.
    """

    seed: int
    valid: bool
    violation: str | None
    events: int
    digest: str
    elections: int
    committed: int
    simulated_ms: int
    schedule: Schedule
    mutant: str | None = None
    trace: tuple[str, ...] = ()


def simulate(
    seed: int,
    *,
    nodes: int = 3,
    duration_ms: int = 60_000,
    faults: Collection[str] | None = None,
    mutant: str | None = None,
    schedule: Schedule | None = None,
) -> SimulationResult:
    """Run one seed; equal arguments give an equal result, everywhere.

    faults: the classes that are on; None: a choice drawn from the seed; (): none.
    schedule: replay this one; nodes, duration_ms and faults are then its own. Raises ValueError
    for an unknown fault or mutant.
    """
    for name in faults or ():
        if name not in FAULTS:
            raise ValueError(f"there is no fault {name!r}")
    if mutant is not None and mutant not in MUTANT_CLASSES:
        raise ValueError(f"there is no mutant {mutant!r}")
    if schedule is None:
        schedule = draw_schedule(seed, nodes=nodes, duration_ms=duration_ms, faults=faults)
    simulator = Simulator(seed, schedule, Quorum if mutant is None else MUTANT_CLASSES[mutant])
    violation = None
    storage = logging.getLogger("quorumlog.storage")
    level = storage.level
    storage.setLevel(logging.CRITICAL)  # it warns of every torn tail: here they are the rule
    try:
        simulator.run()
    except (Violation, InvariantViolation) as error:
        violation = str(error)
    finally:
        storage.setLevel(level)
    return SimulationResult(
        seed=seed,
        valid=violation is None,
        violation=violation,
        events=simulator.events,
        digest=simulator.trace.digest,
        elections=simulator.elections,
        committed=len(simulator.oracle.committed),
        simulated_ms=simulator.now_us // 1000,
        schedule=schedule,
        mutant=mutant,
        trace=() if violation is None else simulator.trace.lines(),
    )


def shrink(result: SimulationResult) -> Schedule:
    """Leave out faults, as many as can be, while the same rule is still broken (ddmin)."""
    faults: list[Fault] = list(result.schedule["faults"])
    chunk = max(1, len(faults) // 2)
    while faults:
        reduced = False
        for start in range(0, len(faults), chunk):
            fewer = faults[:start] + faults[start + chunk :]
            if _breaks_the_same_rule(result, {**result.schedule, "faults": fewer}):
                faults, reduced = fewer, True
                break
        if not reduced and chunk == 1:
            break
        if not reduced:
            chunk = max(1, chunk // 2)
    return {**result.schedule, "faults": faults}


def _breaks_the_same_rule(result: SimulationResult, schedule: Schedule) -> bool:
    again = simulate(result.seed, schedule=schedule, mutant=result.mutant)
    return _rule(again) == _rule(result)


def _rule(result: SimulationResult) -> str | None:
    return None if result.violation is None else result.violation.partition(":")[0]

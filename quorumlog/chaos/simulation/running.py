"""One seed, one run, one result; and the smallest schedule that still fails."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.mutants.parts import REAL_PARTS
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.kernel.run import Run
from quorumlog.chaos.simulation.kernel.swarm import shrink_schedule
from quorumlog.chaos.simulation.worlds.registry import world_kind
from quorumlog.invariants import InvariantViolation
from quorumlog.native import lane
from quorumlog.storage.errors import OffsetOutOfRange, StorageError, UnexpectedOffset
from quorumlog.wire.codec.errors import CorruptBatch

DEFAULT_WORLD: Final = "quorum"
_NOISY_LOGGERS: Final = ("quorumlog.storage", "quorumlog.broker", "quorumlog.metadata_quorum")
_OF_LOGS: Final = (StorageError, OSError, OffsetOutOfRange, UnexpectedOffset, CorruptBatch)
"""The errors that end a process: its log contradicts its predecessor or a leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The outcome of one run. `simulated_ms` includes the calm at the end.

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
    world: str = DEFAULT_WORLD,
    nodes: int = 3,
    duration_ms: int = 60_000,
    faults: Collection[str] | None = None,
    mutant: str | None = None,
) -> SimulationResult:
    """Run one seed; equal arguments give an equal result, everywhere.

    faults: the kinds that are on; None: a choice drawn from the seed; (): none.
    Raises ValueError for an unknown world, fault or mutant.
    """
    kind = world_kind(world)
    names = {fault.name for fault in kind.faults}
    for name in faults or ():
        if name not in names:
            raise ValueError(f"the world {world} has no fault {name!r}")
    schedule = kind.draw(seed, nodes=nodes, duration_us=duration_ms * 1000, faults=faults)
    return replay(schedule, mutant=mutant)


def replay(schedule: Schedule, *, mutant: str | None = None) -> SimulationResult:
    """Run a schedule in the world that it names. Raises ValueError if it does not fit there."""
    lane.turn_off("a simulation is to be the same on every machine")
    kind = world_kind(schedule.workload)
    kind.check_schedule(schedule)
    if mutant is not None and mutant not in kind.mutants:
        raise ValueError(f"the world {kind.name} has no mutant {mutant!r}")
    world = kind.build(schedule, REAL_PARTS if mutant is None else kind.mutants[mutant].parts)
    violation = None
    with _quiet():
        try:
            Run(schedule, world).run()
        except (Violation, InvariantViolation) as error:
            violation = str(error)
        except _OF_LOGS as error:
            violation = f"storage: {error}"
    timeline, trace = world.environment.timeline, world.environment.trace
    return SimulationResult(
        seed=schedule.seed,
        valid=violation is None,
        violation=violation,
        events=timeline.events,
        digest=trace.digest,
        elections=world.elections,
        committed=world.committed(),
        simulated_ms=timeline.now_us // 1000,
        schedule=schedule,
        mutant=mutant,
        trace=() if violation is None else trace.lines(),
    )


def shrink(result: SimulationResult) -> Schedule:
    """Leave out faults, as many as can be, while the same rule is still broken."""

    def still_fails(schedule: Schedule) -> bool:
        return _rule(replay(schedule, mutant=result.mutant)) == _rule(result)

    return shrink_schedule(result.schedule, still_fails)


def _rule(result: SimulationResult) -> str | None:
    return None if result.violation is None else result.violation.partition(":")[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of torn tails and refused logs: in a simulation they are the rule."""
    levels = {name: logging.getLogger(name).level for name in _NOISY_LOGGERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)

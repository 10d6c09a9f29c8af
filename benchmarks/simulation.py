"""How many virtual seconds of whole nodes a CPU-second simulates.

`python -m benchmarks.simulation`, also a part of `make bench`. All figures are CPU time, so other
work on the machine changes them little. Each is the sum over some seeds.
"""

from collections.abc import Collection
from typing import Final

from benchmarks.measure import Figure, Table
from quorumlog.chaos.node_simulation.forked import RunFailed, run_forked
from quorumlog.chaos.node_simulation.simulate import settings_of

SEEDS: Final = range(1, 9)
DURATION_MS: Final = 12_000
IDLE_DURATION_MS: Final = 60_000
_NOTHING_SENT: Final = {"rate": 0.01, "producers": 1, "consumers": 0, "final_readers": 1}


def simulation(table: Table) -> None:
    """Measure runs under faults, idle nodes, and a start."""
    under_faults, start_s = _measured(None, DURATION_MS, {})
    idle, _ = _measured((), IDLE_DURATION_MS, _NOTHING_SENT)
    name = "simulated nodes, 20 sends/s, overlapping faults"
    unit = "virtual s per CPU s"
    table.add(Figure(name=name, value=under_faults, unit=unit, goal=8, at_most=False))
    name = "simulated nodes, idle"
    table.add(Figure(name=name, value=idle, unit=unit, goal=30, at_most=False))
    table.add(Figure(name="start of 3 simulated nodes, CPU", value=start_s, unit="s", goal=0.25))


def _measured(
    faults: Collection[str] | None, duration_ms: int, options: dict[str, float]
) -> tuple[float, float]:
    """Return virtual seconds per CPU-second, and the mean CPU time of a start."""
    wanted = [
        settings_of(seed, faults=faults, duration_ms=duration_ms, options=options) for seed in SEEDS
    ]
    virtual_s = cpu_s = start_s = 0.0
    for outcome in run_forked(wanted):
        if isinstance(outcome, RunFailed):
            raise outcome
        virtual_s += outcome.virtual_s
        cpu_s += outcome.cpu_s
        start_s += outcome.start_cpu_s
    return virtual_s / cpu_s, start_s / len(SEEDS)


if __name__ == "__main__":
    simulation(Table())

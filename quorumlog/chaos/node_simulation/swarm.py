"""Draws the faults of a seed for whole nodes: some kinds, each at a pace of its own, overlapping.

Faults that take turns do not find what overlapping ones find in seconds. Each kind draws from a
generator of its own: to leave one out changes no other.
"""

from collections.abc import Collection, Iterator, Mapping
from random import Random
from typing import Final

from quorumlog.chaos.faults import machines, network
from quorumlog.chaos.faults.fault import ALL, MILLION, ROLES, Fault
from quorumlog.chaos.faults.kill import Kill
from quorumlog.chaos.faults.kill_all import KillAll
from quorumlog.chaos.faults.pause import Pause
from quorumlog.chaos.faults.pause_kill import PauseKill
from quorumlog.chaos.registered import registered
from quorumlog.chaos.schedule import Action, Option, Schedule
from quorumlog.chaos.simulation.kernel.randomness import seeded

KINDS: Final[Mapping[str, type[Fault]]] = {
    kind.name: kind
    for kind in (
        Kill, KillAll, Pause, PauseKill, machines.PowerLoss, network.Partition, network.OneWayCut,
        machines.FsyncError, machines.SlowDisk, machines.ClockDrift,
    )
}  # fmt: skip
"""The kinds that a swarm chooses from. The order counts: the choice is drawn from it."""

_KINDS_AT_ONCE: Final = (2, 5)
_MEAN_GAPS_S: Final = (1.0, 2.0, 4.0)
_LONGEST_S: Final = (0.3, 1.5, 6.0)
_GAP_S_MIN: Final = 0.2
_GAP_AFTER_ALL_S: Final = 2.0  # a cluster that is always down shows nothing


def draw_swarm(
    seed: int,
    *,
    duration_ms: int,
    faults: Collection[str] | None = None,
    workload: str = "",
    options: Mapping[str, Option] | None = None,
) -> Schedule:
    """Return the schedule of a seed. `faults`: exactly these kinds; None: a random choice.

    Raises ValueError for a kind that there is not.
    """
    rng = seeded("kinds of faults", seed)
    chosen = rng.sample([*KINDS], rng.randint(*_KINDS_AT_ONCE))
    if faults is not None:
        chosen = [registered(KINDS, name.replace("-", "_"), "fault").name for name in faults]
    drawn = [action for name in chosen for action in _drawn(seed, KINDS[name], duration_ms / 1000)]
    return Schedule(
        seed=seed,
        duration_us=duration_ms * 1000,
        actions=tuple(sorted(drawn, key=lambda action: (action.t_us, action.fault.name))),
        workload=workload,
        options=options or {},
    )


def _drawn(seed: int, kind: type[Fault], duration_s: float) -> Iterator[Action]:
    rng = seeded(f"faults {kind.name}", seed)
    mean_gap_s, longest_s = rng.choice(_MEAN_GAPS_S), rng.choice(_LONGEST_S)
    at_s = rng.random() * mean_gap_s
    while at_s < duration_s:
        lasts_s = 0.05 + rng.random() * longest_s
        target = rng.choice(ROLES) if {*ROLES} <= {*kind.targets} else kind.targets[0]
        yield Action(
            t_us=int(at_s * MILLION),
            duration_us=int(min(lasts_s, max(0.05, duration_s - at_s)) * MILLION),
            fault=_fault(kind, rng),
            target=target,
        )
        at_s += rng.random() * 2 * mean_gap_s + _GAP_S_MIN
        at_s += _GAP_AFTER_ALL_S if kind is KillAll or target == ALL else 0.0


def _fault(kind: type[Fault], rng: Random) -> Fault:
    if kind is network.OneWayCut:
        return network.OneWayCut(direction=rng.choice(("in", "out")))
    if kind is machines.SlowDisk:
        return machines.SlowDisk(min_us=100, spread_us=rng.randrange(10_000, 500_000))
    if kind is machines.ClockDrift:
        return machines.ClockDrift(rate_ppm=rng.randrange(4 * MILLION // 5, 5 * MILLION // 4))
    return kind()

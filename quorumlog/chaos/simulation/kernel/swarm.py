"""Draws a schedule from a seed, and shrinks a schedule.

Swarm testing: each class of faults is on or off per seed, and its strength is drawn per seed, so
that some runs see one fault often and others see many faults seldom.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from quorumlog.chaos.faults import disks, machines, partitions, traffic
from quorumlog.chaos.faults.admin import Reassign
from quorumlog.chaos.faults.fault import ALL, MILLION, Fault
from quorumlog.chaos.faults.quorum import FalseNotice, Resign
from quorumlog.chaos.schedule import Action, Option, Schedule, Target
from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.invariants import InvariantViolation

DrawOptions = Callable[[Rng, int], tuple[int, dict[str, Option]]]
"""Called with the generator and the number of nodes: how many machines there are, and options."""


class Options:
    """The options of a schedule. `WorldKind.check_schedule` has compared their types before."""

    def __init__(self, schedule: Schedule) -> None:
        self._options: Final = schedule.options

    def number(self, name: str) -> int:
        """Return a whole number."""
        value = self._options[name]
        if not isinstance(value, int):
            raise InvariantViolation(f"option {name} is a whole number, not {value!r}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether something is on."""
        return self._options[name] is True


_INSTANTANEOUS: Final = (
    machines.InterruptedWrite,
    disks.FsyncError,
    disks.DiskStall,
    Resign,
    FalseNotice,
    Reassign,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """The targets of the faults of a world.

    role: the target of half of the seeds, most of the time.
    files: parts of the names of files whose writes are interrupted; "" is any file.
    """

    role: str
    files: Sequence[str] = ("",)


def draw_actions(
    seed: int,
    *,
    kinds: Sequence[type[Fault]],
    chosen: Collection[str] | None,
    node_ids: Sequence[int],
    duration_us: int,
    hunt: Hunt,
) -> tuple[Action, ...]:
    """Return the faults of a seed, in order of time.

    chosen: the names of the kinds that are on; None: a random choice.
    """
    coins = seeded("swarm", seed)
    drawn = [coins.random() < 0.5 for _ in kinds]
    strengths, rng = seeded("parameters", seed), seeded("faults", seed)
    actions: list[Action] = []
    for kind, is_on in zip(kinds, drawn, strict=True):
        # Children of their own, drawn whether needed or not: no kind shifts the draws of another.
        strength = seeded(kind.name, strengths.getrandbits(64))
        child = seeded(kind.name, rng.getrandbits(64))
        if not (is_on if chosen is None else kind.name in chosen):
            continue
        conditions = list(_conditions(strength, kind, node_ids))
        actions += [
            Action(t_us=0, duration_us=duration_us, fault=fault, target=target)
            for fault, target in conditions
        ]
        if not conditions:
            actions += _Draws(child, kind, node_ids, hunt).repeated(duration_us)
    return tuple(sorted(actions, key=lambda action: (action.t_us, action.fault.name)))


def _conditions(
    rng: Random, kind: type[Fault], node_ids: Sequence[int]
) -> Iterator[tuple[Fault, Target]]:
    """Yield the faults of the whole run: of the network, the disks and the clocks."""
    if kind is traffic.Loss:
        yield traffic.Loss(ppm=rng.randrange(1_000, 250_000)), ALL
    elif kind is traffic.Duplication:
        yield traffic.Duplication(ppm=rng.randrange(1_000, 300_000)), ALL
    elif kind is traffic.Delay:
        least, spread = rng.randrange(100, 20_000), rng.randrange(1_000, 80_000)
        yield traffic.Delay(min_us=least, spread_us=spread), ALL
    elif kind is traffic.Reorder:
        ppm, late_us = rng.randrange(1_000, 100_000), rng.randrange(50_000, 3_000_000)
        yield traffic.Reorder(ppm=ppm, late_us=late_us), ALL
    elif kind is disks.SlowDisk:
        least, spread = rng.randrange(100, 20_000), rng.randrange(1_000, 300_000)
        yield disks.SlowDisk(min_us=least, spread_us=spread), ALL
    elif kind is machines.ClockDrift:
        for node_id in node_ids:
            yield (
                machines.ClockDrift(rate_ppm=rng.randrange(4 * MILLION // 5, 5 * MILLION // 4)),
                (node_id,),
            )


@dataclass(frozen=True, slots=True)
class _Draws:
    """The faults of one kind."""

    rng: Random
    kind: type[Fault]
    node_ids: Sequence[int]
    hunt: Hunt

    def repeated(self, duration_us: int) -> Iterator[Action]:
        """Yield one after the other until the time is over."""
        rng = self.rng
        every_ms = rng.randrange(800, 10_000)  # the mean time between two faults
        hunts = rng.random() < 0.5
        at_ms = rng.randrange(every_ms)
        while at_ms * 1000 < duration_us:
            yield self._one(at_ms, self.hunt.role if hunts else None)
            at_ms += rng.randrange(1, 2 * every_ms)

    def _one(self, at_ms: int, hunted_role: str | None) -> Action:
        rng, duration_ms = self.rng, 0
        target: Target = (rng.choice(self.node_ids),)
        if self.kind is machines.PowerLossOfAll:
            target = ALL
        elif hunted_role is not None and rng.random() < 0.7:
            target = hunted_role
        elif self.kind is partitions.Partition:
            target = tuple(member for member in self.node_ids if rng.random() < 0.5)
        fault = self._fault()
        if self.kind not in _INSTANTANEOUS:
            duration_ms = rng.randrange(10, rng.choice((300, 2_000, 8_000)))
        return Action(t_us=at_ms * 1000, fault=fault, target=target, duration_us=duration_ms * 1000)

    def _fault(self) -> Fault:
        rng = self.rng
        if self.kind is machines.InterruptedWrite:
            file = rng.choice(self.hunt.files)
            writes = rng.randrange(1, 6 if file else 40)
            # More than once: also while it recovers.
            return machines.InterruptedWrite(
                file=file, writes=writes, times=rng.choice((1, 1, 2, 3))
            )
        if self.kind is disks.DiskStall:
            return disks.DiskStall(us=rng.randrange(1, rng.choice((1, 4, 12)) * MILLION))
        if self.kind is partitions.OneWayCut:
            return partitions.OneWayCut(direction=rng.choice(("in", "out")))
        return self.kind()


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

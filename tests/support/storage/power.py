"""Disks that lose their power, or refuse, at one operation of a life."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk

OnOperation = Callable[[str, str], None]


class PowerLoss(BaseException):
    """Not an Exception: a process that is gone handles nothing."""


class Nothing(Random):
    """Lets a crash keep nothing but what an fsync has made durable."""

    def randint(self, a: int, b: int) -> int:
        return a

    def random(self) -> float:
        return 1.0


def kept(number: int, seed: int) -> Random:
    """Return the source of what a crash keeps; seed 0: it finds each fsync that is missing."""
    return Random(number * 100 + seed) if seed else Nothing()


def lose_power() -> None:
    raise PowerLoss


def at(number: int, action: Callable[[], None] = lose_power) -> OnOperation:
    """Return a hook that acts at operation `number`, of which the first is 1."""
    left = number

    def on_operation(_operation: str, _path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            action()

    return on_operation


def operations_of(live: Callable[[SimDisk], object], disk: SimDisk | None = None) -> int:
    """Return how many operations of the disk a life takes."""
    operations: list[str] = []
    disk = disk or SimDisk()
    disk.on_operation = lambda operation, _: operations.append(operation)
    live(disk)
    disk.on_operation = None
    return len(operations)


def power_losses(
    live: Callable[[SimDisk], object], *, seeds: int = 1, step: int = 1
) -> Iterator[SimDisk]:
    """Yield the disk after a loss of power at each operation of a life, the last ones first."""
    for number in range(operations_of(live), 0, -step):
        for seed in range(seeds):
            disk = SimDisk(on_operation=at(number))
            with pytest.raises(PowerLoss):
                live(disk)
            disk.on_operation = None
            disk.crash(kept(number, seed))
            yield disk

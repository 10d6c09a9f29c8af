"""Faults of machines and disks that a back end owns: power, fsync, clocks. Times are in us."""

from dataclasses import dataclass
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL, MILLION, Fault, check_range


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLoss(Fault):
    """The target's machine loses what was not fsynced, perhaps with a torn tail, and restarts."""

    name: ClassVar[str] = "power_loss"
    text: ClassVar[str] = "a machine loses what was not fsynced, perhaps with a torn tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedWrite(Fault):
    """The target's machine loses power in the middle of a write, up to `times` times in a row.

    file: only writes to files of this name count; "" counts all.
    writes: the write, counted from now on, that is interrupted.
    """

    name: ClassVar[str] = "interrupted_write"
    text: ClassVar[str] = "a machine loses power in the middle of a write, or of a recovery"
    file: str = ""
    writes: int
    times: int = 1

    def __post_init__(self) -> None:
        check_range("writes", self.writes, 1, MILLION)
        check_range("times", self.times, 1, 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class FsyncError(Fault):
    """The target's next fsync fails; its machine starts again."""

    name: ClassVar[str] = "fsync_error"
    text: ClassVar[str] = "an fsync fails, and the machine starts again"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDisk(Fault):
    """Each fsync takes from `min_us` to `min_us + spread_us`."""

    name: ClassVar[str] = "slow_disk"
    text: ClassVar[str] = "an fsync takes long"
    targets: ClassVar[tuple[str, ...]] = (ALL,)
    min_us: int
    spread_us: int

    def __post_init__(self) -> None:
        check_range("min_us", self.min_us, 0, 60 * MILLION)
        check_range("spread_us", self.spread_us, 0, 60 * MILLION)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDrift(Fault):
    """The target's monotonic clock runs at `rate_ppm` millionths of true time."""

    name: ClassVar[str] = "clock_drift"
    text: ClassVar[str] = "the clocks run at different speeds"
    rate_ppm: int

    def __post_init__(self) -> None:
        check_range("rate_ppm", self.rate_ppm, MILLION // 10, 10 * MILLION)


FAULTS: Final = (PowerLoss, InterruptedWrite, FsyncError, SlowDisk, ClockDrift)

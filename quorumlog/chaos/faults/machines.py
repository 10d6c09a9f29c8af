"""Faults of machines and disks that a back end owns: power, fsync, clocks. Times are in us."""

from typing import Final

from quorumlog.chaos.faults.fault import ALL, MILLION, Fault, named, ranged


@named("power_loss", "a machine loses what was not fsynced, perhaps with a torn tail")
class PowerLoss(Fault):
    """The target's machine loses what was not fsynced, perhaps with a torn tail, and restarts."""


@named("interrupted_write", "a machine loses power in the middle of a write, or of a recovery")
class InterruptedWrite(Fault):
    """The target's machine loses power in the middle of a write, up to `times` times in a row.

    file: only writes to files of this name count; "" counts all.
    writes: the write, counted from now on, that is interrupted.
    """

    file: str = ""
    writes: int = ranged(1, MILLION)
    times: int = ranged(1, 1_000, default=1)


@named("fsync_error", "an fsync fails, and the machine starts again")
class FsyncError(Fault):
    """The target's next fsync fails; its machine starts again."""


@named("slow_disk", "an fsync takes long", targets=(ALL,))
class SlowDisk(Fault):
    """Each fsync takes from `min_us` to `min_us + spread_us`."""

    min_us: int = ranged(0, 60 * MILLION)
    spread_us: int = ranged(0, 60 * MILLION)


@named("clock_drift", "the clocks run at different speeds")
class ClockDrift(Fault):
    """The target's monotonic clock runs at `rate_ppm` millionths of true time."""

    rate_ppm: int = ranged(MILLION // 10, 10 * MILLION)


FAULTS: Final = (PowerLoss, InterruptedWrite, FsyncError, SlowDisk, ClockDrift)

"""Faults of machines and disks that a back end owns: power, fsync, clocks. Times are in us."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import (
    ALL,
    MILLION,
    AnyStep,
    Fault,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)


@named("power_loss", "a machine loses what was not fsynced, perhaps with a torn tail")
class PowerLoss(StepFault):
    """The target's machine loses what was not fsynced, perhaps with a torn tail, and restarts."""

    needs: ClassVar[frozenset[str]] = frozenset({"lose_power", "start"})
    breaks: ClassVar[str] = "lose_power"
    destroys: ClassVar[bool] = True


@named(
    "power_loss_all",
    "all machines lose at once what was not fsynced: only log.flush.acks survives it",
    targets=(ALL,),
)
class PowerLossOfAll(PowerLoss):
    """Every machine loses what was not fsynced, at the same moment, and restarts."""


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
class FsyncError(StepFault):
    """The target's next fsync fails; its machine starts again."""

    needs: ClassVar[frozenset[str]] = frozenset({"fail_fsync", "start"})
    breaks: ClassVar[str] = "fail_fsync"
    destroys: ClassVar[bool] = True


@named("slow_disk", "an fsync takes long", targets=(ALL,))
class SlowDisk(StepFault):
    """Each fsync takes from `min_us` to `min_us + spread_us`."""

    needs: ClassVar[frozenset[str]] = frozenset({"slow_fsync", "mend_fsync"})
    breaks: ClassVar[str] = "slow_fsync"
    min_us: int = ranged(0, 60 * MILLION)
    spread_us: int = ranged(0, 60 * MILLION)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Slow the disks of the victims; a step knows only the longest time."""
        longest_us = self.min_us + self.spread_us
        return (Step(operation="slow_fsync", node_ids=scene.victims, amount=longest_us),)


@named("disk_stall", "an fsync stands still for seconds")
class DiskStall(Fault):
    """The target's next fsync takes so much longer."""

    us: int = ranged(1, 60 * MILLION)


@named("clock_drift", "the clocks run at different speeds")
class ClockDrift(StepFault):
    """The target's monotonic clock runs at `rate_ppm` millionths of true time."""

    needs: ClassVar[frozenset[str]] = frozenset({"drift_clock", "steady_clock"})
    breaks: ClassVar[str] = "drift_clock"
    rate_ppm: int = ranged(MILLION // 10, 10 * MILLION)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Let the clocks of the victims run at this rate."""
        return (Step(operation="drift_clock", node_ids=scene.victims, amount=self.rate_ppm),)


FAULTS: Final = (
    *(PowerLoss, PowerLossOfAll, InterruptedWrite, FsyncError, SlowDisk, DiskStall, ClockDrift),
)

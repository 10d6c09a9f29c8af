"""Faults of machines: power that fails, and clocks that jump or drift. Times are in us."""

from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import (
    ALL,
    GROUPS,
    MILLION,
    NODE_ROLES,
    AnyStep,
    Fault,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)

_DAY_MS: Final = 24 * 60 * 60 * 1000


@named("power_loss", "a machine loses all data not fsynced, perhaps with a torn tail")
class PowerLoss(StepFault):
    """The target's machine loses all unfsynced bytes, perhaps with a torn tail, and restarts."""

    breaks: ClassVar[str] = "lose_power"
    destroys: ClassVar[bool] = True


@named(
    "power_loss_all",
    "all machines lose all data not fsynced at once: only log.flush.acks survives it",
    targets=(ALL,),
)
class PowerLossOfAll(PowerLoss):
    """Every machine loses its unfsynced bytes at the same moment, and restarts."""


@named(
    "power_loss_several",
    "several machines lose all data not fsynced at once, perhaps with a torn tail",
    targets=(*GROUPS, ALL),
)
class PowerLossOfSeveral(PowerLoss):
    """Machines lose their power at the same moment, while others may be down or behind."""

    destroys: ClassVar[bool] = False  # they overlap


@named("interrupted_write", "a machine loses power in the middle of a write, or of a recovery")
class InterruptedWrite(Fault):
    """The target's machine loses power in the middle of a write, up to `times` times in a row.

    file: only writes to files of this name count; "" counts all.
    writes: the write, counted from now on, that is interrupted.
    """

    file: str = ""
    writes: int = ranged(1, MILLION)
    times: int = ranged(1, 1_000, default=1)


@named("clock_drift", "the clocks run at different speeds")
class ClockDrift(StepFault):
    """The target's monotonic clock runs at `rate_ppm` millionths of true time."""

    breaks: ClassVar[str] = "drift_clock"
    rate_ppm: int = ranged(MILLION // 10, 10 * MILLION, is_amount=True)


@named("clock_step", "the wall clock of a node jumps by minutes, and back", targets=NODE_ROLES)
class ClockStep(StepFault):
    """The wall clock is wrong by `step_ms`; the monotonic clock is not.

    direction: `back`, `forward`, or one of them at random.
    """

    breaks: ClassVar[str] = "step_clock"
    step_ms: int = ranged(1, 365 * _DAY_MS, default=5 * 60 * 1000)
    direction: Literal["back", "forward", "either"] = "either"

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Step the clocks of the victims."""
        direction = self.direction
        if direction == "either":
            direction = "back" if scene.rng.random() < 0.5 else "forward"
        step_ms = -self.step_ms if direction == "back" else self.step_ms
        return (Step(operation="step_clock", node_ids=scene.victims, amount=step_ms),)

"""clock_step: the wall clock of a node jumps, and jumps back."""

from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import NODE_ROLES, AnyStep, Scene, Step, StepFault, named, ranged

_DAY_MS: Final = 24 * 60 * 60 * 1000


@named("clock_step", "the wall clock of a node jumps by minutes, and back", targets=NODE_ROLES)
class ClockStep(StepFault):
    """The wall clock is wrong by `step_ms`; the monotonic clock is not.

    direction: `back`, `forward`, or one of them at random.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"step_clock", "reset_clock"})
    breaks: ClassVar[str] = "step_clock"
    step_ms: int = ranged(1, 365 * _DAY_MS, default=5 * 60 * 1000)
    direction: Literal["back", "forward", "either"] = "either"

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Step the clocks of the victims."""
        direction = self.direction
        if direction == "either":
            direction = "back" if scene.rng.random() < 0.5 else "forward"
        step_ms = -self.step_ms if direction == "back" else self.step_ms
        return (Step(operation="step_clock", node_ids=scene.victims, amount=step_ms),)


FAULTS: Final = (ClockStep,)

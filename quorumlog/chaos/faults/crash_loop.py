"""crash_loop: a node dies, starts, and dies again before it has come far."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import (
    MILLION,
    NODE_ROLES,
    AnyStep,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)


@named(
    "crash_loop",
    "SIGKILL a node several times, each time soon after it came back",
    targets=NODE_ROLES,
)
class CrashLoop(StepFault):
    """The node is killed `times` times, at most `alive_us` after it takes part again."""

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start"})
    breaks: ClassVar[str] = "kill"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (3_000, 8_000)
    times: int = ranged(1, 100, default=3)
    alive_us: int = ranged(0, 60 * MILLION, default=800_000)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Kill and start in turn; the last one stays down until the fault is taken back."""
        steps: list[AnyStep] = []
        for place in range(self.times):
            if place:
                alive_us = int(scene.rng.random() * self.alive_us)
                steps.append(Step(operation="start", node_ids=scene.victims, wait_us=alive_us))
            steps.append(Step(operation="kill", node_ids=scene.victims, wait_us=50_000))
        return steps


FAULTS: Final = (CrashLoop,)

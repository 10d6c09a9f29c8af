"""rolling_restart: every node is stopped in order and started again, one after the other."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import (
    ALL,
    MILLION,
    AnyStep,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)


@named("rolling_restart", "SIGTERM to each node in turn; it starts before the next", targets=(ALL,))
class RollingRestart(StepFault):
    """As an operator restarts a cluster: each node takes part again before the next one stops.

    between_us: from the return of a node to the stop of the next.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"stop", "start"})
    drawn_duration_ms: ClassVar[tuple[int, int]] = (6_000, 9_000)
    between_us: int = ranged(0, 60 * MILLION, default=500_000)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Stop and start every node, in a random order."""
        nodes = list(scene.victims)
        scene.rng.shuffle(nodes)
        return [
            step
            for node_id in nodes
            for step in (
                Step(operation="stop", node_ids=(node_id,)),
                Step(operation="start", node_ids=(node_id,), wait_us=self.between_us),
            )
        ]

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Start what was left down, if a step failed."""
        return (Step(operation="start", node_ids=scene.victims),)


FAULTS: Final = (RollingRestart,)

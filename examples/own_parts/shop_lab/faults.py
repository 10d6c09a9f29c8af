"""Two faults: nodes that pause again and again, and a service beside the cluster that stops."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from quorumlog.chaos.faults.fault import (
    NODE_ROLES,
    OUTSIDE,
    AnyStep,
    Outside,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)


@named("blink", "SIGSTOP and SIGCONT a node, several times", targets=NODE_ROLES)
class Blink(StepFault):
    """Steps of the lab alone: it works on real processes and in simulation."""

    needs: ClassVar[frozenset[str]] = frozenset({"pause", "resume"})
    times: int = ranged(1, 100, default=3)
    dark_us: int = ranged(1_000, 10_000_000, default=200_000)

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Pause the victims, and let them go on; the second half of each turn is a rest."""
        turn = (
            Step(operation="pause", node_ids=scene.victims, wait_us=self.dark_us),
            Step(operation="resume", node_ids=scene.victims, wait_us=self.dark_us),
        )
        return turn * self.times


WAREHOUSE = Path("warehouse-is-closed")  # the shop's service looks for this file


@named("stop_warehouse", "the shop's warehouse does not answer", targets=("any",))
class StopWarehouse(StepFault):
    """An act on a thing beside the nodes; simulated machines refuse it."""

    needs: ClassVar[frozenset[str]] = frozenset({OUTSIDE})

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Close the warehouse."""
        del scene  # no node is hit

        async def close() -> None:
            WAREHOUSE.touch()

        return (Outside(act=close),)

    def heal(self, scene: Scene) -> Sequence[AnyStep]:
        """Open it again."""
        del scene

        async def reopen() -> None:
            WAREHOUSE.unlink(missing_ok=True)

        return (Outside(act=reopen, ends=True),)

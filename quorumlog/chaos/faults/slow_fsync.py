"""slow_fsync: the disk of a node is slow to make things durable."""

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


@named("slow_fsync", "each fsync of a node takes long for a while", targets=NODE_ROLES)
class SlowFsync(StepFault):
    """An fsync takes up to `us` longer."""

    needs: ClassVar[frozenset[str]] = frozenset({"slow_fsync", "mend_fsync"})
    breaks: ClassVar[str] = "slow_fsync"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (2_000, 6_000)
    us: int = ranged(1, 60 * MILLION, default=500_000)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Slow the disks of the victims."""
        return (Step(operation="slow_fsync", node_ids=scene.victims, amount=self.us),)


FAULTS: Final = (SlowFsync,)

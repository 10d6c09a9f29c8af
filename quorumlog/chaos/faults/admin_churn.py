"""admin_churn: an administrator changes topics and moves replicas all the time."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL, AnyStep, Scene, Step, StepFault, named, ranged


@named(
    "admin_churn",
    "topics are created, grown, configured, moved and deleted, leaders elected, all the time",
    targets=(ALL,),
)
class AdminChurn(StepFault):
    """About `per_s` changes a second to topics of its own; all partitions may move."""

    needs: ClassVar[frozenset[str]] = frozenset({"churn", "calm"})
    breaks: ClassVar[str] = "churn"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (3_000, 8_000)
    per_s: int = ranged(1, 1_000, default=10)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Begin to change."""
        return (Step(operation="churn", node_ids=scene.victims, amount=self.per_s),)


FAULTS: Final = (AdminChurn,)

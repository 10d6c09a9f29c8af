"""throttle: copies of replicas that are not in sync are made slowly for a while."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL, AnyStep, Scene, Step, StepFault, named, ranged


@named(
    "throttle",
    "brokers give and get few bytes of replicas that are not in sync (KIP-73)",
    targets=(ALL,),
)
class Throttle(StepFault):
    """All replicas of all topics, on both sides, get `bytes_per_s` on each broker."""

    needs: ClassVar[frozenset[str]] = frozenset({"throttle", "release"})
    breaks: ClassVar[str] = "throttle"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (2_000, 6_000)
    bytes_per_s: int = ranged(1, 1_000_000_000, default=10_000)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Begin to throttle."""
        return (Step(operation="throttle", node_ids=scene.victims, amount=self.bytes_per_s),)


FAULTS: Final = (Throttle,)

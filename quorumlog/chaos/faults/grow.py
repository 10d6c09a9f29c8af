"""grow: the topic of the workload gets another partition."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL, AnyStep, Scene, StepFault, named


@named("grow", "the topic of the workload gets another partition", targets=(ALL,))
class Grow(StepFault):
    """A few at most (KIP-195). Partitions stay: nothing is taken back."""

    needs: ClassVar[frozenset[str]] = frozenset({"grow"})
    breaks: ClassVar[str] = "grow"

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Do nothing."""
        del scene
        return ()


FAULTS: Final = (Grow,)

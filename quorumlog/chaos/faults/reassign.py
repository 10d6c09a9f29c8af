"""reassign: a partition begins to move to other brokers, or goes back."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import AnyStep, Scene, StepFault, named


@named("reassign", "a partition moves to other brokers, or goes back to the ones before")
class Reassign(StepFault):
    """Which partition, and where to, is drawn when the fault is due (KIP-455).

    It goes on by itself: nothing is taken back.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"reassign"})
    breaks: ClassVar[str] = "reassign"

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Do nothing."""
        del scene
        return ()


FAULTS: Final = (Reassign,)

"""wipe_majority: most copies of the newer records are destroyed. A control: they are lost."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import AnyStep, Scene, Step, StepFault, named


@named(
    "wipe_majority",
    "control: SIGKILL every node, cut off half of the logs of most, start these first",
    targets=("majority",),
)
class WipeMajority(StepFault):
    """Acknowledged records are lost, and a run must find that.

    The metadata log stays, so that the cluster works afterwards. The nodes with full copies stay
    down meanwhile: the controller sees that their processes are gone, so they leave each ISR in
    which others are left, and one that lacks records leads. Later the full copies are cut off to
    follow it. A directory that is wiped would be noticed (decision 18).
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start", "lose_records"})
    breaks: ClassVar[str] = "kill"
    destroys: ClassVar[bool] = True
    is_control: ClassVar[bool] = True

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Destroy, and start those that lack records."""
        return (
            Step(operation="kill", node_ids=scene.running),
            Step(operation="lose_records", node_ids=scene.victims),
            Step(operation="start", node_ids=scene.victims),
        )

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Start the others."""
        return (Step(operation="start", node_ids=scene.running),)


FAULTS: Final = (WipeMajority,)

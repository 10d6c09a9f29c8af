"""wipe: a node dies and its log directory is empty when it starts again."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ROLES, AnyStep, Scene, Step, StepFault, named


@named("wipe", "SIGKILL a node and empty its log directory; it starts as a new one", targets=ROLES)
class Wipe(StepFault):
    """A disk is replaced: the node has a new directory id, and copies everything again.

    The back end waits until the cluster needs no copy of this node; if it never does, nothing is
    wiped. Two never overlap.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start", "wipe"})
    breaks: ClassVar[str] = "kill"
    destroys: ClassVar[bool] = True

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Kill, then wipe."""
        return (
            Step(operation="kill", node_ids=scene.victims),
            Step(operation="wipe", node_ids=scene.victims),
        )


FAULTS: Final = (Wipe,)

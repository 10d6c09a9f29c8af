"""alter_log_dirs: a replica begins to move to another log directory of its broker, or goes back."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import AnyStep, Scene, StepFault, named


@named("alter_log_dirs", "a replica moves to another log directory of its broker, or stays")
class AlterLogDirs(StepFault):
    """Which broker, which replica and which directory is drawn when the fault is due (KIP-113).

    It goes on by itself: nothing is taken back.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"alter_log_dirs"})
    breaks: ClassVar[str] = "alter_log_dirs"

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Do nothing."""
        del scene
        return ()


FAULTS: Final = (AlterLogDirs,)

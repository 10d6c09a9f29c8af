"""Faults that take memory, although it may be all that holds what was acknowledged.

Those of `machines.py` ask before whether a loss costs something. These do not: what they take is
judged by what all copies together still hold.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import (
    ALL,
    GROUPS,
    MILLION,
    NODE_ROLES,
    AnyStep,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)
from quorumlog.chaos.faults.machines import PowerLoss


@named(
    "fsync_loss",
    "a flush of a partition fails, its records in memory are gone, and the process is killed",
    targets=NODE_ROLES,
)
class FsyncLoss(StepFault):
    """The next flush of a log fails, and what it was to write leaves the page cache.

    alive_us: from then, or from the beginning if nothing is flushed, to the SIGKILL at the latest.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fail_flush", "kill", "start"})
    breaks: ClassVar[str] = "kill"
    alive_us: int = ranged(0, 60 * MILLION, default=MILLION)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Let a flush fail, and kill the process a moment later."""
        return (
            Step(operation="fail_flush", node_ids=scene.victims, wait_us=self.alive_us),
            Step(operation="kill", node_ids=scene.victims),
        )


@named(
    "power_loss_several",
    "several machines lose at once what was not fsynced, perhaps with a torn tail",
    targets=(*GROUPS, ALL),
)
class PowerLossOfSeveral(PowerLoss):
    """Machines lose their power at the same moment, while others may be down or behind."""

    destroys: ClassVar[bool] = False  # they overlap


FAULTS: Final = (FsyncLoss, PowerLossOfSeveral)

"""disk_error: calls on the files of a node fail."""

from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import NODE_ROLES, AnyStep, Scene, Step, StepFault, named
from quorumlog.chaos.faults.file_calls import CALLS


@named(
    "disk_error",
    "the disk of a node fails (EIO); it gets well, and the node starts again",
    targets=NODE_ROLES,
)
class DiskError(StepFault):
    """Some calls on the files of the log directory fail with EIO.

    calls: which; `any`: one kind, chosen at random. The process is killed before the disk is well
    again, because a log that has failed stays offline until its node starts.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fail_disk", "mend_disk", "kill", "start"})
    breaks: ClassVar[str] = "fail_disk"
    calls: Literal["any", "all", "reads", "writes", "syncs"] = "any"

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Break the disks of the victims."""
        calls: str = self.calls
        if calls == "any":
            names = [*CALLS]
            calls = names[scene.rng.randrange(0, len(names))]
        return (Step(operation="fail_disk", node_ids=scene.victims, amount=CALLS[calls]),)

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Start the nodes again, with disks that work."""
        return tuple(
            Step(operation=operation, node_ids=scene.victims)
            for operation in ("kill", "mend_disk", "start")
        )


FAULTS: Final = (DiskError,)

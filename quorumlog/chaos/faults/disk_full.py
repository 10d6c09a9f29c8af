"""disk_full: the disk of a node takes a few more bytes, and then none."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import NODE_ROLES, AnyStep, Scene, Step, StepFault, named, ranged

_LEFT_BYTES_MAX: Final = 1 << 40
_ENDING_US: Final = 300_000  # what is giving up has ended by then


@named(
    "disk_full", "the disk of a node gets full (ENOSPC); later there is room", targets=NODE_ROLES
)
class DiskFull(StepFault):
    """The log directory takes `left_bytes` more; a part of the write after them, then nothing.

    Files cannot be created either; reads and fsyncs go on. A node that ends is started again.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fill_disk", "free_disk", "start"})
    breaks: ClassVar[str] = "fill_disk"
    left_bytes: int = ranged(0, _LEFT_BYTES_MAX, default=5_000)

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Fill the disks of the victims."""
        return (Step(operation="fill_disk", node_ids=scene.victims, amount=self.left_bytes),)

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Make room; start what has ended."""
        return (
            Step(operation="free_disk", node_ids=scene.victims, wait_us=_ENDING_US),
            Step(operation="start", node_ids=scene.victims),
        )


FAULTS: Final = (DiskFull,)

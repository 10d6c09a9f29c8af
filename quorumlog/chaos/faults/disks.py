"""Faults of disks: calls that fail, a disk that is full, slow or still. Times are in us."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import (
    ALL,
    MILLION,
    NODE_ROLES,
    AnyStep,
    Fault,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)

_LEFT_BYTES_MAX: Final = 1 << 40
_ENDING_US: Final = 300_000  # a process that gives up has ended by then
READS: Final = 1
WRITES: Final = 2
SYNCS: Final = 4
NAMES: Final = 8  # to open, create, rename or remove a file

CALLS: Final[Mapping[str, int]] = {
    "all": READS | WRITES | SYNCS | NAMES,
    "reads": READS,
    "writes": WRITES | SYNCS,
    "syncs": SYNCS,
}


@named(
    "disk_error",
    "the disk of a node fails (EIO), then works again; the node restarts",
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

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Break the disks of the victims."""
        calls: str = self.calls
        if calls == "any":
            names = [*CALLS]
            calls = names[scene.rng.randrange(0, len(names))]
        return (Step(operation="fail_disk", node_ids=scene.victims, amount=CALLS[calls]),)

    def heal(self, scene: Scene) -> Sequence[AnyStep]:
        """Start the nodes again, with disks that work."""
        return tuple(
            Step(operation=operation, node_ids=scene.victims)
            for operation in ("kill", "mend_disk", "start")
        )


@named(
    "disk_full",
    "the disk of a node fills up (ENOSPC), later it has space again",
    targets=NODE_ROLES,
)
class DiskFull(StepFault):
    """The log directory takes `left_bytes` more; a part of the write after them, then nothing.

    Files cannot be created either; reads and fsyncs go on. A node that ends is started again.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fill_disk", "free_disk", "start"})
    breaks: ClassVar[str] = "fill_disk"
    left_bytes: int = ranged(0, _LEFT_BYTES_MAX, default=5_000, is_amount=True)

    def heal(self, scene: Scene) -> Sequence[AnyStep]:
        """Make room; start the nodes that have ended."""
        return (
            Step(operation="free_disk", node_ids=scene.victims, wait_us=_ENDING_US),
            Step(operation="start", node_ids=scene.victims),
        )


@named("slow_fsync", "each fsync of a node takes long for a while", targets=NODE_ROLES)
class SlowFsync(StepFault):
    """An fsync takes up to `us` longer."""

    breaks: ClassVar[str] = "slow_fsync"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (2_000, 6_000)
    us: int = ranged(1, 60 * MILLION, default=500_000, is_amount=True)


@named("fsync_error", "an fsync fails, and the machine starts again")
class FsyncError(StepFault):
    """The target's next fsync fails; its machine starts again."""

    breaks: ClassVar[str] = "fail_fsync"
    destroys: ClassVar[bool] = True


@named("slow_disk", "an fsync takes long", targets=(ALL,))
class SlowDisk(StepFault):
    """Each fsync takes from `min_us` to `min_us + spread_us`."""

    breaks: ClassVar[str] = "slow_fsync"
    min_us: int = ranged(0, 60 * MILLION)
    spread_us: int = ranged(0, 60 * MILLION)

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Slow the disks of the victims; a step has only the longest time."""
        longest_us = self.min_us + self.spread_us
        return (Step(operation="slow_fsync", node_ids=scene.victims, amount=longest_us),)


@named("disk_stall", "an fsync blocks for seconds")
class DiskStall(Fault):
    """The target's next fsync takes so much longer."""

    us: int = ranged(1, 60 * MILLION)


@named(
    "fsync_loss",
    "a flush of a partition fails, its records in memory are gone, and the process is killed",
    targets=NODE_ROLES,
)
class FsyncLoss(StepFault):
    """The next flush of a log fails, and its unflushed records leave the page cache.

    alive_us: from then, or from the beginning if nothing is flushed, to the SIGKILL at the latest.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"fail_flush", "kill", "start"})
    breaks: ClassVar[str] = "kill"
    alive_us: int = ranged(0, 60 * MILLION, default=MILLION)

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Let a flush fail, and kill the process a moment later."""
        return (
            Step(operation="fail_flush", node_ids=scene.victims, wait_us=self.alive_us),
            Step(operation="kill", node_ids=scene.victims),
        )

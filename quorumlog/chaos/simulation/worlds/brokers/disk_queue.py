"""A disk queue whose work takes simulated time: a partition is busy meanwhile, others are not.

And what a person does to the disk of a broker that has stopped and says what to do.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, TypeVar

from quorumlog.broker.partitions.log.disk_queue import outcome_of
from quorumlog.broker.partitions.log.log_directory import OrphanedRecords
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.storage.io.disk import Disk

T = TypeVar("T")


class SimulatedDiskQueue:
    """A DiskQueue of one life of a process. What is under way when that ends is never done."""

    def __init__(
        self, machine: Machine, environment: Environment, take: Callable[..., None]
    ) -> None:
        """`take` calls an action with its arguments now, or after a pause of the process."""
        self._machine: Final = machine
        self._environment: Final = environment
        self._take: Final = take
        self._busy_until_us: Final[dict[Hashable, int]] = {}

    def submit(
        self, key: Hashable, work: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        """Do `work` after all that was submitted for `key` before; then tell `done` its result."""
        now_us = self._machine.timeline.now_us
        started_us = max(self._busy_until_us.get(key, 0), now_us)
        ended_us = started_us + self._environment.fsync_us()
        self._busy_until_us[key] = ended_us
        self._machine.later(ended_us - now_us, self._take, _do_disk_work, work, done)


def _do_disk_work(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    done(outcome_of(work))


def maybe_repair(disk: Disk, failure: BaseException) -> None:
    """Say whose records those are that a loss of power has orphaned: no topic is made again here.

    If the disk refuses that, the next start fails in the same way, and the person is back.
    """
    if isinstance(failure, OrphanedRecords):
        with suppress(OSError):
            write_partition_metadata(disk, failure.path, failure.topic_id)

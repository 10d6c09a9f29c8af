"""A disk queue whose work takes simulated time: a partition is busy meanwhile, others are not.

And what a person does to the disk of a broker that has stopped and says what to do.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import count
from typing import Any, Final, TypeVar

from quorumlog.broker.partitions.log.disk_queue import outcome_of
from quorumlog.broker.partitions.log.log_directory import OrphanedRecords
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.chaos.simulation.worlds.entries import Entry, entries_on_disk
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition

T = TypeVar("T")
AreOf = Callable[[TopicPartition, TopicId, list[Entry]], bool]


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
        ended_us = started_us + self._environment.fsync_us(self._machine.node_id)
        self._busy_until_us[key] = ended_us
        self._machine.later(ended_us - now_us, self._take, _do_disk_work, work, done)


def _do_disk_work(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    done(outcome_of(work))


def orphaned_in(replicas: ReplicaSet) -> OrphanedRecords | None:
    """Return the error of a log that asks a person for help: no other replica has the lead."""
    for at, error in replicas.reported.refused.items():
        partition = replicas.image.partition(at)
        if isinstance(error, OrphanedRecords) and partition and partition.is_undecided:
            return error
    return None


def maybe_repair(disk: SimDisk, failure: BaseException, are_of: AreOf | None = None) -> None:
    """Do what the failure says: write down whose records those are, or move them away.

    `are_of` tells whether records are of this topic, or of an earlier one of its name; without it,
    no topic was ever made again. If the disk refuses, the next start fails in the same way, and
    the person is back.
    """
    if isinstance(failure, OrphanedRecords):
        with suppress(OSError):
            if are_of is None or _are_of_topic(disk, failure, are_of):
                write_partition_metadata(disk, failure.path, failure.topic_id)
            else:
                _move_away(disk, failure.path)


def _are_of_topic(disk: SimDisk, orphaned: OrphanedRecords, are_of: AreOf) -> bool:
    topic, _, index = orphaned.path.rpartition("/")[2].rpartition("-")
    at, found = TopicPartition(topic, int(index)), entries_on_disk(disk, orphaned.path)
    return are_of(at, orphaned.topic_id, found)


def _move_away(disk: SimDisk, path: str) -> None:
    aways = (f"{path}.moved-away.{number}" for number in count(1))
    disk.rename(path, next(away for away in aways if not disk.exists(away)))
    disk.fsync_dir(path.rpartition("/")[0])

"""Disk queues whose work takes simulated time and blocks only its own partition.

Also the manual repair of a log directory after a broker stopped with `OrphanedRecords`.
"""

from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

from quorumlog.broker.partitions.log.disk_queue import outcome_of
from quorumlog.broker.partitions.log.log_directory import OrphanedRecords
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.chaos.simulation.worlds.entries import Entry, entries_on_disk
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition

T = TypeVar("T")
AreOf = Callable[[TopicPartition, TopicId, list[Entry]], bool]


LOG_DIR: Final = "/logs"
LATE_US: Final = (2_000, 100_000, 400_000)  # the longest delay of an outcome, by run


def at_once() -> int:
    """Return a delay of 0: each outcome arrives as soon as its work ends."""
    return 0


def late_outcomes(environment: Environment, node_id: int) -> Callable[[], int]:
    """Return a function that draws the delay of an outcome: half have none; in the calm, all."""
    longest_us = seeded("late outcomes", environment.seed).choice(LATE_US)
    rng = seeded(f"late outcomes {node_id}", environment.seed)
    return lambda: 0 if environment.is_calm else rng.choice((0, rng.randrange(longest_us)))


class SimulatedDiskQueue:
    """A DiskQueue of one life of a process. Work that is under way when that ends is lost.

    The outcome of work may reach `done` later than the work ends: a thread ends several pieces of
    work before the event loop receives their outcomes.
    """

    def __init__(
        self,
        machine: Machine,
        environment: Environment,
        take: Callable[..., None],
        late_us: Callable[[], int],
    ) -> None:
        """`take` calls an action with its arguments now, or after a pause of the process.

        `late_us` draws the time between the end of a piece of work and the call of its `done`.
        """
        self._machine: Final = machine
        self._environment: Final = environment
        self._take: Final = take
        self._late_us: Final = late_us
        self._lanes: Final[dict[Hashable, deque[_Work]]] = {}  # by key with work under way

    def submit(
        self, key: Hashable, work: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        """Do `work` after all earlier work for `key`; then call `done` with its result."""
        submitted = _Work(self._environment.fsync_us(self._machine.node_id), work, done)
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque()
            self._begin(key, submitted)
        else:
            lane.append(submitted)

    def _begin(self, key: Hashable, begun: "_Work") -> None:
        self._machine.later(begun.takes_us, self._take, self._do_disk_work, key, begun)

    def _do_disk_work(self, key: Hashable, begun: "_Work") -> None:
        outcome, late_us = outcome_of(begun.work), self._late_us()
        if late_us:
            self._machine.later(late_us, self._take, self._end, key, begun, outcome)
        else:
            self._end(key, begun, outcome)

    def _end(self, key: Hashable, ended: "_Work", outcome: object) -> None:
        ended.done(outcome)
        lane = self._lanes[key]
        if lane:
            self._begin(key, lane.popleft())
        else:
            del self._lanes[key]


class _Work(NamedTuple):
    """A piece of work. `takes_us`: its duration."""

    takes_us: int
    work: Callable[[], Any]
    done: Callable[[Any], None]

    def __str__(self) -> str:
        return "work"


def orphaned_in(replicas: ReplicaSet) -> OrphanedRecords | None:
    """Return the error of a log that needs manual repair: its partition has no other leader."""
    for at, error in replicas.reported.refused.items():
        partition = replicas.image.partition(at)
        if isinstance(error, OrphanedRecords) and partition and partition.is_undecided:
            return error
    return None


def maybe_repair(disk: SimDisk, failure: BaseException, are_of: AreOf | None = None) -> None:
    """Repair as the error advises: write the topic id of the records, or move them away.

    `are_of` returns whether records belong to this topic, not to an earlier one of its name;
    without it, no topic was ever re-created. After a disk error the next start fails in the same
    way, and the repair is tried again.
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

"""The moves between log directories that are under way on this broker, and what is left of others.

It keeps two promises to the next start. A copy stays on the disk as long as the committed metadata
may say that the replica is where the copy is: a start that found nothing there would make an empty
log. And a log whose copy may or may not have its name after a crash takes no more records until the
metadata names its own directory again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.future_logs import FutureKey
from quorumlog.broker.partitions.log.future_replica import FutureReplica
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition

LANE: Final = "directory moves"  # in the disk queue: all work on copies

_logger: Final = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Move:
    """One move. `is_announced`: the controller was told, or is being told, of the new directory.

    `is_waiting`: it can do nothing until something is published.
    """

    replica: FutureReplica
    is_announced: bool = False
    is_waiting: bool = False
    bring_ins: int = 0
    refusal: StorageError | None = None  # of the disk, at the end of the move

    @property
    def at(self) -> TopicPartition:
        """What moves."""
        return self.replica.at

    @property
    def driver(self) -> PartitionDriver:
        """The replica."""
        return self.replica.driver

    @property
    def target(self) -> LogDirectory:
        """Where it moves to."""
        return self.replica.target


class FutureSize(NamedTuple):
    """A copy: the directory that it is in, its log once there is one, and what it lacks."""

    directory: LogDirectory
    log: Log | None
    offset_lag: int


class MoveTable:
    """At most one move of a partition is in `moves` or `ending`. On the event loop's thread.

    `note_assignment` is told of a replica whose reported directory has changed, `changed` that
    there is something to do.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        replicas: ReplicaSet,
        disk: DiskQueue,
        *,
        note_assignment: Callable[[TopicPartition], None],
        changed: Callable[[], None],
    ) -> None:
        self.moves: Final[dict[TopicPartition, Move]] = {}  # in the order of their turns
        self.ending: Final[dict[TopicPartition, Move]] = {}  # a thread exchanges their logs
        self._undecided: Final[list[Move]] = []  # their logs wait for `end_exchange`
        self._retired: Final[list[Move]] = []  # their copies are kept for a possible start
        self._broker_id: Final = broker_id
        self._replicas: Final = replicas
        self._disk: Final = disk
        self._changed: Final = changed
        self.note_assignment: Final = note_assignment

    def sizes(self) -> dict[TopicPartition, FutureSize]:
        """Return what is being copied, for DescribeLogDirs."""
        under_way = [*self.moves.items(), *self.ending.items()]
        return {at: FutureSize(one.target, one.replica.log, _lag(one)) for at, one in under_way}

    def is_here(self, move: Move) -> bool:
        """Whether the replica is still on this broker, and of use."""
        return self._replicas.drivers.get(move.at) is move.driver

    def is_named(self, move: Move) -> bool:
        """Whether the committed metadata says that the replica is where it moves to."""
        image = self._replicas.image
        topic, partition = image.topics.get(move.at.topic), image.partition(move.at)
        return (
            topic is not None
            and partition is not None
            and topic.topic_id == move.driver.topic_id
            and self._broker_id in partition.replicas
            and partition.directory_of(self._broker_id) == move.target.directory_id
        )

    def add(self, move: Move) -> None:
        """Begin a move, unless another one is under way or the replica has gone or is there."""
        at = move.at
        is_over = not self.is_here(move) or self._replicas.logs.home_of(at) is move.target
        if is_over or at in self.moves or at in self.ending:
            self._discard(move.replica.discard)
            return
        _logger.info("%s begins to move to %s", at, move.target.path)
        move.driver.is_moving = True
        self.moves[at] = move
        self._changed()

    def announce(self, move: Move) -> None:
        """Tell the controller where the replica will be."""
        if self.moves.get(move.at) is move and self.is_here(move):
            move.is_announced = True
            self._replicas.logs.announce(move.at, move.target)
            self.note_assignment(move.at)

    def retract(self, move: Move) -> None:
        """Tell the controller that the replica stays where it is, if it was told otherwise."""
        if move.is_announced:
            move.is_announced = False
            self._replicas.logs.announce(move.at, None)
            self.note_assignment(move.at)

    def remove(self, move: Move) -> bool:
        """Give up a move; return whether its copy must be discarded now, by the caller."""
        if self.moves.get(move.at) is not move:
            return False
        del self.moves[move.at]
        move.driver.is_moving = False
        self.retract(move)
        if self.is_named(move):
            self._retired.append(move)
            return False
        return True

    def postpone(self, move: Move) -> None:
        """Let the others have their turns first."""
        if self.moves.get(move.at) is move:
            self.moves[move.at] = self.moves.pop(move.at)

    def leave_undecided(self, move: Move) -> None:
        """Let the replica's log wait until the metadata names its own directory again."""
        self.retract(move)
        self._undecided.append(move)

    def note_opened(self, at: TopicPartition) -> None:
        """Begin again what a former process has begun with this replica."""
        self.look()
        driver = self._replicas.drivers.get(at)
        if driver is None:
            return
        key = FutureKey(driver.topic_id, at.partition)
        for directory in self._replicas.logs.online:
            name = directory.futures.take_found(key)
            if name is not None:
                self.add(Move(FutureReplica(driver, directory, name)))

    def look(self) -> None:
        """Look at every move again: metadata was published, or a replica has gone."""
        if not (self.moves or self._retired or self._undecided):
            return
        for move in self.moves.values():
            move.is_waiting = False
            if not self.is_here(move):
                self.retract(move)
        for move in [*self._undecided]:
            if not (self.is_named(move) and self.is_here(move)):
                self._undecided.remove(move)
                move.driver.is_moving = False
                move.driver.end_exchange(None)
        for move in [*self._retired]:
            is_there = self._replicas.logs.home_of(move.at) is move.target  # by a later move
            if is_there or not self.is_named(move):
                self._retired.remove(move)
                self._discard(move.replica.discard)
        self._changed()

    def discard_strays(self) -> None:
        """Give up what a former process has begun with replicas that are not to be here."""
        topics = self._replicas.image.topics
        assigned = [at for at in self._replicas.assigned() if at.topic in topics]
        keys = {FutureKey(topics[at.topic].topic_id, at.partition) for at in assigned}
        for directory in self._replicas.logs.online:
            for name in directory.futures.take_others(keys):
                self._discard(partial(directory.futures.discard, name))

    def close(self) -> None:
        """Give up the files of all copies: the next start begins these moves again."""
        for move in (*self.moves.values(), *self._retired):
            move.replica.close()

    def _discard(self, work: Callable[[], None]) -> None:
        def done(outcome: StorageError | None) -> None:
            if outcome is not None:
                _logger.error("a copy stays: %s", outcome)
            self._replicas.remove_files()

        self._disk.submit(LANE, work, done)


def _lag(move: Move) -> int:
    copied = 0 if move.replica.log is None else move.replica.log.log_end_offset
    return max(0, move.driver.log.log_end_offset - copied)

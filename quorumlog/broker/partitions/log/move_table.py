"""The moves between log directories on this broker, and the copies left by earlier moves.

It guarantees two things to the next start. A copy stays on disk while the committed metadata may
name its directory: a start that finds no log there would create an empty one. And a log whose copy
may or may not have the log's name after a crash gets no more records until the metadata names the
log's own directory again.
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
    """One move. `is_announced`: the new directory was, or is being, reported to the controller.

    `is_waiting`: it cannot advance until new metadata is published.
    """

    replica: FutureReplica
    is_announced: bool = False
    is_waiting: bool = False
    bring_ins: int = 0
    refusal: StorageError | None = None  # of the disk, at the end of the move

    @property
    def at(self) -> TopicPartition:
        """The partition that moves."""
        return self.replica.at

    @property
    def driver(self) -> PartitionDriver:
        """The replica."""
        return self.replica.driver

    @property
    def target(self) -> LogDirectory:
        """The directory that it moves to."""
        return self.replica.target


class FutureSize(NamedTuple):
    """A copy: its directory, its log once there is one, and its lag in offsets."""

    directory: LogDirectory
    log: Log | None
    offset_lag: int


class MoveTable:
    """The moves; at most one of a partition is in `moves` or `ending`. On the event loop's thread.

    `note_assignment` receives a replica whose reported directory has changed; `changed` is called
    when a move may advance.
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
        self.ending: Final[dict[TopicPartition, Move]] = {}  # a thread swaps their logs
        self._undecided: Final[list[Move]] = []  # their logs wait for `end_exchange`
        self._retired: Final[list[Move]] = []  # their copies are kept for a possible start
        self._broker_id: Final = broker_id
        self._replicas: Final = replicas
        self._disk: Final = disk
        self._changed: Final = changed
        self.note_assignment: Final = note_assignment

    def sizes(self) -> dict[TopicPartition, FutureSize]:
        """Return the copies under way, for DescribeLogDirs."""
        under_way = [*self.moves.items(), *self.ending.items()]
        return {at: FutureSize(one.target, one.replica.log, _lag(one)) for at, one in under_way}

    def is_here(self, move: Move) -> bool:
        """Whether the replica is still on this broker, with a usable log."""
        return self._replicas.drivers.get(move.at) is move.driver

    def is_named(self, move: Move) -> bool:
        """Whether the committed metadata names the move's target as the replica's directory."""
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
        """Begin a move, unless another is under way, or the replica is gone or at the target."""
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
        """Report the new directory of the replica to the controller."""
        if self.moves.get(move.at) is move and self.is_here(move):
            move.is_announced = True
            self._replicas.logs.announce(move.at, move.target)
            self.note_assignment(move.at)

    def retract(self, move: Move) -> None:
        """Report to the controller that the replica stays, if it needs that."""
        move.is_announced = False
        self._replicas.logs.announce(move.at, None)
        self.note_assignment(move.at)

    def remove(self, move: Move) -> bool:
        """End a move; return whether the caller must now discard its copy."""
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
        """Put a move behind all others."""
        if self.moves.get(move.at) is move:
            self.moves[move.at] = self.moves.pop(move.at)

    def leave_undecided(self, move: Move) -> None:
        """Keep the replica's log waiting until the metadata names its own directory again."""
        self.retract(move)
        self._undecided.append(move)

    def note_opened(self, at: TopicPartition) -> None:
        """Restart the moves of this replica that an earlier process has begun."""
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
        """Check every move again: metadata was published, or a replica was removed."""
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
        """Discard the copies of an earlier process whose replicas are not to be here."""
        topics = self._replicas.image.topics
        assigned = [at for at in self._replicas.assigned() if at.topic in topics]
        keys = {FutureKey(topics[at.topic].topic_id, at.partition) for at in assigned}
        for directory in self._replicas.logs.online:
            for name in directory.futures.take_others(keys):
                self._discard(partial(directory.futures.discard, name))

    def close(self) -> None:
        """Close the files of all copies: the next start begins these moves again."""
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

"""Moves replicas between the log directories of this broker (KIP-113, KIP-858).

One replica at a time is copied, in chunks, beside everything else that its log is used for. What
follows each chunk: `core.directory_moves`. How the copy takes the place of the log:
`log.future_replica`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core import directory_moves as core
from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.core.directory_moves import DirectoryMoveRules, Ending
from quorumlog.broker.partitions.core.replication_throttle import ReplicationThrottle
from quorumlog.broker.partitions.io.disk_threads import performed
from quorumlog.broker.partitions.log.cold_reads import BRING_INS_MAX, bring_in
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.future_logs import FutureKey
from quorumlog.broker.partitions.log.future_replica import (
    Chunk,
    CopyRefused,
    FutureReplica,
    Known,
    NewLogLost,
    Promoted,
    Undecided,
    view_of,
)
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.clock import monotonic_ms
from quorumlog.invariants import some
from quorumlog.storage.errors import (
    DiskExhausted,
    NotInMemory,
    OffsetOutOfRange,
    StorageError,
)
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicPartition

LANE: Final = "directory moves"  # in the disk queue
CHUNK_BYTES: Final = 1 << 20
RETRY_S: Final = 1.0
THROTTLE_LOOK_S: Final = 1.0  # the rate may change while a move waits

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


@dataclass(slots=True)
class _Retired:
    """What is over, and still kept: a start must see it while the metadata may name its place.

    `retiring`: their copies. `undecided`: their logs wait for `end_exchange`, too.
    """

    retiring: list[Move] = field(default_factory=list)
    undecided: list[Move] = field(default_factory=list)


class DirectoryMoves:
    """Runs one task, and answers requests. It belongs to the event loop's thread.

    `note_assignment` is told of a replica whose reported directory has changed.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        replicas: ReplicaSet,
        disk: DiskQueue,
        *,
        rules: DirectoryMoveRules,
        throttle: ReplicationThrottle,
        note_assignment: Callable[[TopicPartition], None],
    ) -> None:
        self._broker_id: Final = broker_id
        self._replicas: Final = replicas
        self._logs: Final[LogDirectories] = replicas.logs
        self._drivers: Final[Mapping[TopicPartition, PartitionDriver]] = replicas.drivers
        self._disk: Final = disk
        self._rules: Final = rules
        self._throttle: Final = throttle
        self._note_assignment: Final = note_assignment
        self._moves: Final[dict[TopicPartition, Move]] = {}  # in the order of their turns
        self._ending: Final[dict[TopicPartition, Move]] = {}  # a thread exchanges their logs
        self._retired: Final = _Retired()
        self._wake: Final = asyncio.Event()

    # --- Requests ---

    async def alter(self, at: TopicPartition, path: str) -> ErrorCode:
        """Let a replica move to the directory of this path, or stay if it is there.

        A replica that is not here yet will be made there. Answers once the wish is on the disk.
        """
        target = self._logs.at_path(path)
        if target is None:
            is_offline = self._logs.is_offline(path)
            return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.LOG_DIR_NOT_FOUND
        driver = await self._settled(at)
        if driver is None:
            return self._prefer(at, target)
        move = self._moves.get(at)
        if move is not None and move.driver is driver and move.target is target:
            return ErrorCode.NONE
        try:
            if move is not None:
                await self._end(move)
            if self._logs.home_of(at) is not target:
                await self._begin(driver, target)
        except StorageError as error:
            _logger.error("%s does not move to %s: %s", at, target.path, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    async def _settled(self, at: TopicPartition) -> PartitionDriver | None:
        """Return the replica once no thread exchanges its log; None: it is not here."""
        while (driver := self._drivers.get(at)) is not None and driver.is_exchanging:
            await performed(self._disk, at, lambda: None)
            if driver.is_exchanging:  # undecided: until something is published
                self._wake.clear()
                await self._wake.wait()
        return driver

    def _prefer(self, at: TopicPartition, target: LogDirectory) -> ErrorCode:
        missing = self._replicas.error_for_missing(at)
        if missing is ErrorCode.KAFKA_STORAGE_ERROR:
            return missing
        self._logs.preferred.prefer(at, target.directory_id)
        is_known = missing is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_known else missing

    def sizes(self) -> dict[TopicPartition, FutureSize]:
        """Return what is being copied, for DescribeLogDirs."""
        return {
            at: FutureSize(
                move.target,
                move.replica.log,
                max(0, move.driver.log.log_end_offset - _end_of(move.replica.log)),
            )
            for at, move in [*self._moves.items(), *self._ending.items()]
        }

    # --- What happens beside ---

    def note_opened(self, at: TopicPartition) -> None:
        """Begin again what a former process has begun with this replica."""
        self.look()
        driver = self._drivers.get(at)
        if driver is None:
            return
        key = FutureKey(driver.topic_id, at.partition)
        for directory in self._logs.online:
            name = directory.futures.take_found(key)
            if name is None:
                continue
            if at in self._moves or self._logs.home_of(at) is directory:
                self._discard(partial(directory.futures.discard, name))
            else:
                self._add(Move(FutureReplica(driver, directory, name)))

    def look(self) -> None:
        """Look at every move again: metadata was published, or a replica has gone."""
        retired, undecided = self._retired.retiring, self._retired.undecided
        if not (self._moves or retired or undecided):
            return
        for move in self._moves.values():
            move.is_waiting = False
            if not self._is_here(move):
                self._retract(move)
        self._wake.set()
        for move in [one for one in undecided if not self._is_named(one) or not self._is_here(one)]:
            undecided.remove(move)
            move.driver.is_moving = False
            move.driver.end_exchange(None)
        for move in [one for one in retired if not self._is_named(one)]:
            retired.remove(move)
            self._discard(move.replica.discard)

    def discard_strays(self) -> None:
        """Give up what a former process has begun with replicas that are not to be here."""
        topics = self._replicas.image.topics
        assigned = [at for at in self._replicas.assigned() if at.topic in topics]
        keys = {FutureKey(topics[at.topic].topic_id, at.partition) for at in assigned}
        for directory in self._logs.online:
            for name in directory.futures.take_others(keys):
                self._discard(partial(directory.futures.discard, name))

    def close(self) -> None:
        """Give up the files of all copies: the next start begins these moves again. Waits."""
        for move in (*self._moves.values(), *self._retired.retiring):
            move.replica.close()

    async def run(self) -> None:
        """Move what is to be moved until cancelled."""
        while True:
            move = next((one for one in self._moves.values() if not one.is_waiting), None)
            if move is None:
                self._wake.clear()
                await self._wake.wait()
            else:
                await self._advance(move)

    # --- One move ---

    async def _begin(self, driver: PartitionDriver, target: LogDirectory) -> None:
        at = driver.topic_partition
        make = partial(target.futures.make, at, driver.topic_id)
        move = Move(FutureReplica(driver, target, await performed(self._disk, LANE, make)))
        if at in self._moves or not self._is_here(move) or self._logs.home_of(at) is target:
            self._discard(move.replica.discard)  # another request was faster, or it has gone
        else:
            self._add(move)

    def _add(self, move: Move) -> None:
        _logger.info("%s begins to move to %s", move.at, move.target.path)
        move.driver.is_moving = True
        self._moves[move.at] = move
        self._wake.set()

    async def _end(self, move: Move) -> None:
        """Let the replica stay where it is, and the copy go. Raises StorageError."""
        if self._moves.get(move.at) is not move:
            return
        del self._moves[move.at]
        move.driver.is_moving = False
        self._retract(move)
        if self._is_named(move):
            self._retired.retiring.append(move)
        else:
            await performed(self._disk, LANE, move.replica.discard)
            self._replicas.remove_files()

    def _retract(self, move: Move) -> None:
        """Tell the controller that the replica stays where it is, if it was told otherwise."""
        if move.is_announced:
            move.is_announced = False
            self._logs.announce(move.at, None)
            self._note_assignment(move.at)

    def _discard(self, work: Callable[[], None]) -> None:
        def done(outcome: StorageError | None) -> None:
            if outcome is not None:
                _logger.error("a copy stays: %s", outcome)
            self._replicas.remove_files()

        self._disk.submit(LANE, work, done)

    def _is_here(self, move: Move) -> bool:
        return self._drivers.get(move.at) is move.driver

    def _is_named(self, move: Move) -> bool:
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

    async def _advance(self, move: Move) -> None:
        """Do one step of a move, or end it if it cannot go on."""
        refusal, move.refusal = move.refusal, None
        try:
            if refusal is not None:
                raise refusal
            if not self._is_here(move) or move.target not in self._logs.online:
                await self._end(move)
            elif move.replica.log is None:
                await performed(self._disk, LANE, move.replica.open)
            elif move.driver.is_cutting:
                await performed(self._disk, move.at, lambda: None)
            else:
                await self._step(move)
        except DiskExhausted as error:
            _logger.warning("%s: the move is to be tried again: %s", move.at, error)
            if self._moves.pop(move.at, None) is move:
                self._moves[move.at] = move  # after the others
            await asyncio.sleep(RETRY_S)
        except StorageError as error:
            await self._fail(move, error)

    async def _fail(self, move: Move, error: StorageError) -> None:
        _logger.error("%s does not move to %s: %s", move.at, move.target.path, error)
        if not isinstance(error, CopyRefused) and move.target in self._logs.online:
            self._replicas.fail_directory(move.target, error)
        try:
            await self._end(move)
        except StorageError as refusal:
            _logger.error("%s: the copy in %s stays: %s", move.at, move.replica.name, refusal)

    async def _step(self, move: Move) -> None:
        driver, copy = move.driver, some(move.replica.log, "it is open")
        current = view_of(driver.log)
        step = self._rules.next_step(current, view_of(copy))
        chunk: Chunk | None = None
        if isinstance(step, core.CopyFrom):
            chunk = await self._read(move, step)
            if chunk is None:
                return
        ending = self._rules.ending(
            step,
            reaches_end=chunk is not None and chunk.next_offset >= current.end,
            is_announced=move.is_announced,
            is_assigned=self._is_named(move),
        )
        if ending is Ending.SWAP:
            await self._swap(move, chunk)
        elif ending is Ending.WAIT:
            move.is_waiting = True
        elif chunk is not None:
            await self._copy(move, chunk)
        elif not isinstance(step, core.CaughtUp | core.CopyFrom):
            await performed(self._disk, LANE, partial(move.replica.apply, step))
        if ending is Ending.ANNOUNCE and self._moves.get(move.at) is move:
            await performed(self._disk, LANE, move.replica.flush)
            self._announce(move)

    def _announce(self, move: Move) -> None:
        if self._moves.get(move.at) is move and self._is_here(move):
            move.is_announced = True
            self._logs.announce(move.at, move.target)
            self._note_assignment(move.at)

    async def _read(self, move: Move, step: core.CopyFrom) -> Chunk | None:
        """Read the current log; None: look again, since it is in memory only now."""
        try:
            read = move.driver.read(
                step.offset,
                max_bytes=self._throttle.chunk_bytes(CHUNK_BYTES),
                end=ReadEnd.LOG_END,
                at_least_one=True,
                may_wait=move.bring_ins >= BRING_INS_MAX,
            )
        except NotInMemory as absent:
            move.bring_ins += 1
            await self._bring_in(move, absent)
            return None
        except (StorageError, OffsetOutOfRange) as error:
            raise CopyRefused(f"{move.driver.log.directory} cannot be read: {error}") from error
        move.bring_ins = 0
        return Chunk(b"".join(read.chunks), Offset(read.next_offset))

    async def _bring_in(self, move: Move, absent: NotInMemory) -> None:
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: StorageError | None) -> None:
            if arrived.done():
                return
            if error is None:
                arrived.set_result(None)
            else:
                arrived.set_exception(CopyRefused(str(error)))

        bring_in(self._disk, move.at, move.driver.log, absent, is_wanted=lambda: True, done=done)
        await arrived

    async def _copy(self, move: Move, chunk: Chunk) -> None:
        await performed(self._disk, LANE, partial(move.replica.append, chunk))
        size = len(chunk.records)
        while True:
            now_ms = monotonic_ms()
            due_ms = self._throttle.next_fetch_ms(move.at, self._broker_id, size, now_ms)
            if due_ms <= now_ms or self._moves.get(move.at) is not move:
                return
            size = 0
            await asyncio.sleep(min((due_ms - now_ms) / 1000, THROTTLE_LOOK_S))

    # --- The end of a move ---

    async def _swap(self, move: Move, last: Chunk | None) -> None:
        """Let the copy take the place of the log: what comes meanwhile waits."""
        driver, at = move.driver, move.at
        source = some(self._logs.home_of(at), "a log that is open has a home")
        known = Known(
            high_watermark=driver.partition.state.high_watermark,
            cleaned=self._logs.checkpoints.cleaned(at),
            producers=ProducerSnapshot(driver.log.log_end_offset, driver.producers.snapshot()),
        )
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending[at] = self._moves.pop(at)
        driver.begin_exchange()

        def done(outcome: Promoted | StorageError) -> None:
            self._swapped(move, source, outcome)
            if not over.done():
                over.set_result(None)

        self._disk.submit(at, partial(move.replica.promote, last, known, source), done)
        await over

    def _swapped(self, move: Move, source: LogDirectory, outcome: Promoted | StorageError) -> None:
        driver, at = move.driver, move.at
        del self._ending[at]
        match outcome:
            case Promoted(log=log, refusal=refusal):
                driver.is_moving = False
                if self._is_here(move):
                    self._logs.move(at, move.target)
                    _logger.info("%s has moved to %s", at, move.target.path)
                else:
                    self._retract(move)
                driver.end_exchange(log)
                if not self._is_here(move):  # its deletion, if there is one, comes after
                    self._disk.submit(at, lambda: log.close(clean=False), lambda _: None)
                self._note_assignment(at)
                self._replicas.remove_files()
                if refusal is not None:
                    self._replicas.fail_directory(source, refusal)
            case Undecided():
                self._retract(move)
                self._retired.undecided.append(move)
                self._replicas.fail_directory(move.target, outcome)
                self.look()
            case NewLogLost():
                if self._is_here(move):
                    self._logs.move(at, move.target)
                driver.end_exchange(None)
                self._replicas.fail_directory(move.target, outcome)
            case _:
                move.refusal, move.replica.log = outcome, None
                self._moves[at] = move
                driver.end_exchange(None)


def _end_of(log: Log | None) -> int:
    return 0 if log is None else log.log_end_offset

"""Moves replicas between the log directories of this broker (KIP-113, KIP-858).

One replica at a time is copied, in chunks, while its log stays in use. `core.directory_moves`
chooses the step after each chunk; `log.future_replica` replaces the log by its copy.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog import chance
from quorumlog.broker.partitions.core import directory_moves as core
from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.core.directory_moves import AfterStep, DirectoryMoveRules
from quorumlog.broker.partitions.core.replication_throttle import ReplicationThrottle
from quorumlog.broker.partitions.io.disk_threads import performed
from quorumlog.broker.partitions.log.cold_reads import BRING_INS_MAX, bring_in
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
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
from quorumlog.broker.partitions.log.move_table import LANE, Move, MoveTable
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.clock import monotonic_ms
from quorumlog.invariants import require, some
from quorumlog.storage.errors import DiskExhausted, NotInMemory, OffsetOutOfRange, StorageError
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicPartition
from quorumlog.wire.codec.message import contents

CHUNK_BYTES: Final = 1 << 20
UNIQUE_BYTES: Final = 16  # in the name of a copy
RETRY_S: Final = 1.0
THROTTLE_LOOK_S: Final = 1.0  # the rate may change while a move waits

_logger: Final = logging.getLogger(__name__)


class DirectoryMoves:
    """Runs one task, and handles requests. It belongs to the event loop's thread."""

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
        """`note_assignment`: see MoveTable."""
        self._broker_id: Final = broker_id
        self._replicas: Final = replicas
        self._logs: Final[LogDirectories] = replicas.logs
        self._disk: Final = disk
        self._rules: Final = rules
        self._throttle: Final = throttle
        self._wake: Final = asyncio.Event()
        self._is_idle = False  # `run` waits for the event
        self._refused: Final[set[TopicPartition]] = set()  # moves that wait for disk space
        self.table: Final = MoveTable(
            broker_id, replicas, disk, note_assignment=note_assignment, changed=self._wake.set
        )

    # --- Requests ---

    async def alter(self, at: TopicPartition, path: str) -> ErrorCode:
        """Move a replica to the directory at `path`; end its move if it is already there.

        A missing replica will be created there later. A move is on disk before this returns.
        """
        target = self._logs.at_path(path)
        if target is None:
            is_offline = self._logs.is_offline(path)
            return ErrorCode.KAFKA_STORAGE_ERROR if is_offline else ErrorCode.LOG_DIR_NOT_FOUND
        driver = await self._settled(at)
        if driver is None:
            return self._prefer(at, target)
        move = self.table.moves.get(at)
        if move is not None and move.driver is driver and move.target is target:
            return ErrorCode.NONE
        try:
            if move is not None:
                await self._end(move)
            source = self._logs.home_of(at)
            if source is not target:
                keep_name = partial(some(source, "it is here").keep_name, at, driver.topic_id)
                await performed(self._disk, at, keep_name)
                unique = chance.random_bytes(UNIQUE_BYTES)
                make = partial(target.futures.make, at, driver.topic_id, unique)
                name = await performed(self._disk, LANE, make)
                self.table.add(Move(FutureReplica(driver, target, name)))
        except StorageError as error:
            _logger.warning("%s does not move to %s: %s", at, target.path, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    async def _settled(self, at: TopicPartition) -> PartitionDriver | None:
        """Return the replica once no thread swaps its log; None: it is not on this broker."""
        drivers = self._replicas.drivers
        while (driver := drivers.get(at)) is not None and driver.is_swapping_log:
            await performed(self._disk, at, lambda: None)
            if driver.is_swapping_log:  # undecided: until new metadata is published
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

    # --- One move ---

    async def run(self) -> None:
        """Advance the moves until cancelled."""
        while True:
            moves = self.table.moves.values()
            move = next((one for one in moves if not one.is_waiting), None)
            if move is None:
                self._wake.clear()
                self._is_idle = True
                await self._wake.wait()
                self._is_idle = False
            else:
                await self._advance(move)

    def check_progress(self) -> None:
        """Raise InvariantViolation if a move may advance, and the task sleeps."""
        due = [at for at, move in self.table.moves.items() if not move.is_waiting]
        sleeps = self._is_idle and not self._wake.is_set()
        require(not (due and sleeps), f"moves between directories: {due[:3]}")

    async def _end(self, move: Move) -> None:
        """End a move: the replica stays and the copy is discarded. Raises StorageError."""
        if self.table.remove(move):
            await performed(self._disk, LANE, move.replica.discard)
            self._replicas.remove_files()

    async def _advance(self, move: Move) -> None:
        """Do one step of a move, or end it if it cannot continue."""
        refusal, move.refusal = move.refusal, None
        try:
            if refusal is not None:
                raise refusal
            if not self.table.is_here(move) or move.target not in self._logs.online:
                await self._end(move)
            elif move.replica.log is None:
                await performed(self._disk, LANE, move.replica.open)
            elif move.driver.is_truncating:
                await performed(self._disk, move.at, lambda: None)
            else:
                await self._step(move)
            self._refused.discard(move.at)
        except DiskExhausted as error:
            if move.at not in self._refused:  # log it once, until the move continues
                self._refused.add(move.at)
                _logger.warning("%s: the move is to be tried again: %s", move.at, error)
            self.table.postpone(move)
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
            _logger.warning("%s: the copy in %s stays: %s", move.at, move.replica.name, refusal)

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
            is_named=self.table.is_named(move),
        )
        if ending is AfterStep.SWAP:
            await self._swap(move, chunk)
        elif ending is AfterStep.WAIT:
            move.is_waiting = True
        elif chunk is not None:
            await self._copy(move, chunk)
        elif not isinstance(step, core.CaughtUp | core.CopyFrom):
            await performed(self._disk, LANE, partial(move.replica.apply, step))
        if ending is AfterStep.ANNOUNCE and self.table.moves.get(move.at) is move:
            await performed(self._disk, LANE, move.replica.flush)
            self.table.announce(move)

    async def _read(self, move: Move, step: core.CopyFrom) -> Chunk | None:
        """Read the current log; None: try again, its records are now brought into memory."""
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
        return Chunk(b"".join(contents(read.chunks)), Offset(read.next_offset))

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
            if due_ms <= now_ms or self.table.moves.get(move.at) is not move:
                return
            size = 0
            await asyncio.sleep(min((due_ms - now_ms) / 1000, THROTTLE_LOOK_S))

    # --- The end of a move ---

    async def _swap(self, move: Move, last: Chunk | None) -> None:
        """Replace the log by the copy; requests of the replica wait meanwhile."""
        driver, at = move.driver, move.at
        source = some(self._logs.home_of(at), "a log that is open has a home")
        known = Known(
            high_watermark=driver.partition.state.high_watermark,
            cleaned=self._logs.checkpoints.cleaned(at),
            producers=ProducerSnapshot(driver.log.log_end_offset, driver.producers.snapshot()),
        )
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.table.ending[at] = self.table.moves.pop(at)
        driver.begin_exchange()

        def done(outcome: Promoted | StorageError) -> None:
            self._swapped(move, source, outcome)
            if not over.done():
                over.set_result(None)

        self._disk.submit(at, partial(move.replica.promote, last, known, source), done)
        await over

    def _swapped(self, move: Move, source: LogDirectory, outcome: Promoted | StorageError) -> None:
        driver, at = move.driver, move.at
        del self.table.ending[at]
        match outcome:
            case Promoted(log=log, refusal=refusal):
                driver.is_moving = False
                if self.table.is_here(move):
                    self._logs.move(at, move.target)
                    _logger.info("%s has moved to %s", at, move.target.path)
                else:
                    self.table.retract(move)
                driver.end_exchange(log)
                if not self.table.is_here(move):  # a deletion of the log, if any, comes after
                    self._disk.submit(at, lambda: log.close(clean=False), lambda _: None)
                self._replicas.remove_files()
                if refusal is not None:
                    self._replicas.fail_directory(source, refusal)
            case Undecided():
                self.table.leave_undecided(move)
                self._replicas.fail_directory(move.target, outcome)
                self.table.look()
            case NewLogLost():
                if self.table.is_here(move):
                    self._logs.move(at, move.target)
                driver.end_exchange(None)
                self._replicas.fail_directory(move.target, outcome)
            case _:
                move.refusal, move.replica.log = outcome, None
                self.table.moves[at] = move
                driver.end_exchange(None)

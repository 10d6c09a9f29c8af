"""The copy of one replica in another log directory of its broker, until it takes its place.

`promote` is the end of a move. What it does is done in an order that a crash may cut anywhere:

    1. the copy is complete, all on the disk, and so are its checkpoints and its producers
    2. its directory gets the plain name      before: the next start finds the old log, and a copy
    3. the old log gets a `-delete` name      before: it finds two that are equal
                                              after: it finds the new log

Nothing is appended meanwhile, and the committed metadata has shown the new directory since before
the first step, so it tells which of two logs counts. Sources: KIP-113, KIP-858.
"""

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.directory_moves import (
    CutTo,
    LogView,
    StartAt,
    StartOver,
)
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.invariants import some
from quorumlog.storage.errors import RecordsTooLarge, StorageError, UnexpectedOffset
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import read_header

_logger: Final = logging.getLogger(__name__)


class Chunk(NamedTuple):
    """Whole batches of one segment of the current log, up to `next_offset`."""

    records: bytes
    next_offset: Offset


class Known(NamedTuple):
    """What the files of a log do not hold: it moves with the log."""

    high_watermark: Offset
    cleaned: Offset
    producers: ProducerSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """The new log. `refusal`: why the old one has kept its name; its directory has failed."""

    log: Log
    refusal: StorageError | None = None


class CopyRefused(StorageError):
    """The current log holds what no log takes: a batch that is not whole, or a gap."""


class Undecided(StorageError):
    """The target has refused the plain name, or kept it: a crash may leave two logs.

    Nothing must be appended to the old one until the committed metadata shows its directory again.
    """


class NewLogLost(StorageError):
    """The new log has the plain name, and cannot be opened."""


def view_of(log: Log) -> LogView:
    """Return what the rules compare."""
    return LogView(log.log_start_offset, log.log_end_offset, log.epochs)


class FutureReplica:
    """One copy. All methods wait for the disk, one at a time, but for what `log` is asked.

    They raise StorageError; CopyRefused if the fault is not the target's.
    """

    def __init__(self, driver: PartitionDriver, target: LogDirectory, name: str) -> None:
        self.driver: Final = driver
        self.target: Final = target
        self.name: Final = name  # of its directory
        self.log: Log | None = None  # once it is open

    @property
    def at(self) -> TopicPartition:
        """Whose copy it is."""
        return self.driver.topic_partition

    def open(self) -> None:
        """Begin with nothing, whatever a former process has copied."""
        self.close()
        settings = self.driver.log.settings
        self.log = self.target.futures.open(self.name, self.driver.topic_id, settings)

    def apply(self, step: StartOver | CutTo | StartAt) -> None:
        """Let the copy begin or end where the current log does."""
        log = self._opened
        match step:
            case StartOver(offset=offset):
                log.truncate_fully_and_start_at(offset)
            case CutTo(offset=offset):
                log.truncate_to(offset)
            case StartAt(offset=offset):
                log.advance_log_start_offset(offset)
                log.remove_dead_segments()

    def append(self, chunk: Chunk) -> None:
        """Append what was read, in segments that begin where those of the current log do.

        So retention and compaction find the same segments in both.
        """
        if not chunk.records:
            return
        log, current = self._opened, self.driver.log
        first_offset = read_header(memoryview(chunk.records)).base_offset
        is_empty = log.log_start_offset == log.log_end_offset
        if is_empty and first_offset < log.log_end_offset:  # the log starts within a batch
            log.truncate_fully_and_start_at(first_offset)
        is_border = first_offset in current.segment_base_offsets
        if is_border and log.active_base_offset < first_offset == log.log_end_offset:
            log.roll(first_offset)
            kept = current.producers.kept_at(first_offset)
            if kept is not None:
                log.producers.keep(kept)
        try:
            log.append_as_follower(chunk.records)
        except (CorruptBatch, UnexpectedOffset, RecordsTooLarge) as error:
            raise CopyRefused(f"{current.directory} cannot be copied: {error}") from error

    def flush(self) -> None:
        """Make durable what was copied, so that the end of the move has little to do."""
        self._opened.flush()

    def close(self) -> None:
        """Give up its files."""
        if self.log is not None:
            self.log.close(clean=False)

    def discard(self) -> None:
        """Give up the move: no start begins it again."""
        self.close()
        self.target.futures.discard(self.name)

    def promote(self, last: Chunk | None, known: Known, source: LogDirectory) -> Promoted:
        """Take the place of the current log, while nothing else uses that.

        Raises Undecided, NewLogLost; any other StorageError: the old log is current, as before.
        """
        old = self.driver.log
        self._complete(last, known)
        try:
            self.target.futures.promote(self.name, self.at)
        except StorageError as error:
            raise Undecided(str(error)) from error
        refusal: StorageError | None = None
        try:
            source.delete(self.at, old, durably=True)
        except StorageError as error:
            _logger.warning("%s has moved, and is left in %s: %s", self.at, source.path, error)
            refusal = error
        try:
            log = self.target.reopen(self.at, self.driver.topic_id, old.settings)
        except StorageError as error:
            raise NewLogLost(str(error)) from error
        return Promoted(log=log, refusal=refusal)

    def _complete(self, last: Chunk | None, known: Known) -> None:
        log, checkpoints = self._opened, self.target.checkpoints
        if last is not None:
            self.append(last)
        log.producers.keep(known.producers)
        log.flush()
        log.producers.copy_transactions(self.driver.log.aborted)
        # All four, so that nothing stays of an older log of this name.
        checkpoints.note_high_watermarks({self.at: known.high_watermark})
        checkpoints.note_recovery_points({self.at: log})
        checkpoints.note_log_starts({self.at: log})
        checkpoints.note_cleaned(self.at, known.cleaned)
        checkpoints.write_all()
        log.close(clean=True)

    @property
    def _opened(self) -> Log:
        return some(self.log, "a copy is open before it is written")

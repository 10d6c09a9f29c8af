"""The copy of one replica in another log directory of its broker, until it replaces the original.

`promote` is the end of a move. Its steps are ordered so that a crash may interrupt them anywhere:

    1. the copy is complete and durable, and so are its checkpoints and its producers
    2. its directory gets the plain name      before: the next start finds the old log, and a copy
    3. the old log gets a `-delete` name      before: it finds two equal logs
                                              after: it finds the new log

No record is appended meanwhile. The committed metadata has named the new directory since before
the first step, so it decides which of two logs is valid. Sources: KIP-113, KIP-858.
"""

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.directory_moves import CutTo, LogView, StartAt, StartOver
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
    """The state that a log's own files do not hold; it moves with the log."""

    high_watermark: Offset
    cleaned: Offset
    producers: ProducerSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """The new log. `refusal`: the error if the old log kept its name; its directory has failed."""

    log: Log
    refusal: StorageError | None


class CopyRefused(StorageError):
    """The current log cannot be copied: it holds an incomplete batch, or has a gap."""


class Undecided(StorageError):
    """The target did not confirm the plain name of the copy: a crash may leave two logs.

    The old log must get no records until the committed metadata names its directory again.
    """


class NewLogLost(StorageError):
    """The new log has the plain name, and cannot be opened."""


def view_of(log: Log) -> LogView:
    """Return the values of a log that the rules compare."""
    return LogView(log.log_start_offset, log.log_end_offset, log.epochs)


class FutureReplica:
    """One copy. All methods wait for the disk, one at a time; only reads of `log` do not.

    They raise StorageError; CopyRefused if the current log, not the target, is at fault.
    """

    def __init__(self, driver: PartitionDriver, target: LogDirectory, name: str) -> None:
        self.driver: Final = driver
        self.target: Final = target
        self.name: Final = name  # of its directory
        self.log: Log | None = None  # once it is open

    @property
    def at(self) -> TopicPartition:
        """The partition."""
        return self.driver.topic_partition

    def open(self) -> None:
        """Open an empty copy; drop the records that an earlier process has copied."""
        self.close()
        settings = self.driver.log.settings
        self.log = self.target.futures.open(self.name, self.driver.topic_id, settings)

    def apply(self, step: StartOver | CutTo | StartAt) -> None:
        """Change the start or the end of the copy to that of the current log."""
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
        """Append a chunk, in segments with the same base offsets as those of the current log.

        Retention and compaction then find the same segments in both logs.
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
        """Make the copied records durable, so that the end of the move is short."""
        self._opened.flush()

    def close(self) -> None:
        """Close the files of the copy."""
        if self.log is not None:
            self.log.close(clean=False)

    def discard(self) -> None:
        """End the move and discard the copy: no start begins the move again."""
        self.close()
        self.target.futures.discard(self.name)

    def promote(self, last: Chunk | None, known: Known, source: LogDirectory) -> Promoted:
        """Replace the current log, which is not in use meanwhile.

        Raises Undecided, NewLogLost; after any other StorageError the old log stays current.
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
        # All four, so that no offset of an older log with this name remains.
        checkpoints.note_high_watermarks({self.at: known.high_watermark})
        checkpoints.note_recovery_points({self.at: log})
        checkpoints.note_log_starts({self.at: log})
        checkpoints.note_cleaned(self.at, known.cleaned)
        checkpoints.write_all()
        log.close(clean=True)

    @property
    def _opened(self) -> Log:
        return some(self.log, "a copy is open before it is written")

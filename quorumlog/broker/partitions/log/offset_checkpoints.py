"""Four offsets of each log that its own files do not hold, in one file per kind of offset.

`replication-offset-checkpoint`: high watermarks. `recovery-point-offset-checkpoint`: the records
below are durable and need no recovery. `log-start-offset-checkpoint`: the start of a log if it is
not the start of a segment, or if the log was closed. `cleaner-offset-checkpoint`: the end of the
compacted part.
"""

import threading
from collections.abc import Mapping
from functools import partialmethod
from typing import Final

from quorumlog.storage.errors import storage_errors
from quorumlog.storage.io.checkpoints import (
    CLEANED_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    decode_offset_checkpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from quorumlog.storage.io.disk import Disk, read_file
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

Offsets = dict[TopicPartition, Offset]

FILES: Final = (REPLICATION_FILE, RECOVERY_POINT_FILE, LOG_START_FILE, CLEANED_FILE)


class OffsetCheckpoints:
    """The offsets of all logs in one directory. Any thread may call all methods.

    Invariants:
      1. No recovery point lies above the flushed offset of its log once `note_truncated` or
         `forget` has returned, whatever another thread writes at the same time.
      2. By then no high watermark and no compacted offset lies above the log end either.
      3. A new log inherits no offsets from an older log of its name.

    A method that raises StorageError has changed the state in memory; the next write tries again.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk: Final = disk
        self._directory: Final = directory
        self._noting: Final = threading.Lock()  # never held while the disk works
        self._writing: Final = threading.Lock()  # two writers of one file would share its draft
        self._read_high_watermarks: Offsets = {}  # at the start
        self._written_high_watermarks: Offsets | None = None  # the content on disk
        # By file. Log starts: of logs that were closed, or whose start has moved. Ends of compacted
        # parts: of logs that were compacted.
        self._offsets: Final[dict[str, Offsets]] = {name: {} for name in FILES}
        self.is_lost = False  # the file of high watermarks; while lost, it is not rewritten
        self._has_high_watermarks = False  # on disk, from an earlier process or from this one
        self._deleted: set[TopicPartition] = set()  # the files may still contain them
        self._left: set[TopicPartition] = set()  # likewise, deleted by the last process

    def read(self, *, must_be_there: bool = False) -> None:
        """Read the files; a damaged file counts as missing. Raises OSError.

        `must_be_there`: all logs of the directory were once open, see `note_all_open`.
        """
        for name in FILES:
            self._offsets[name] = read_offset_checkpoint(self._disk, self._directory, name)
        self._read_high_watermarks = dict(self._offsets[REPLICATION_FILE])
        self._has_high_watermarks = self._is_written()
        self.is_lost = must_be_there and not self._has_high_watermarks

    def note_all_open(self) -> None:
        """Write the file of high watermarks if there is none: from now on its absence is a loss.

        Raises StorageError.
        """
        self.is_lost = False
        if not self._has_high_watermarks:
            self.write_high_watermarks()
            self._has_high_watermarks = True

    def _is_written(self) -> bool:
        """Return whether the file of high watermarks exists and is whole. It is never empty."""
        try:
            content = read_file(self._disk, f"{self._directory}/{REPLICATION_FILE}")
            decode_offset_checkpoint(content)
        except (FileNotFoundError, ValueError):
            return False
        return bool(content)

    def has_recovery_point(self, at: TopicPartition) -> bool:
        """Return whether a log has a recovery point."""
        return at in self._offsets[RECOVERY_POINT_FILE]

    def high_watermark(self, at: TopicPartition) -> Offset:
        """Return the checkpointed high watermark; 0 if there is none."""
        return self._offset(REPLICATION_FILE, at)

    def recovery_point(self, at: TopicPartition) -> Offset:
        """Return the offset below which the log is durable; 0 if there is none."""
        return self._offset(RECOVERY_POINT_FILE, at)

    def log_start(self, at: TopicPartition) -> Offset | None:
        """Return the log start; None: the start of the first segment."""
        return self._offsets[LOG_START_FILE].get(at)

    def cleaned(self, at: TopicPartition) -> Offset:
        """Return the offset below which the log is compacted; 0 if there is none."""
        return self._offset(CLEANED_FILE, at)

    def _offset(self, file_name: str, at: TopicPartition) -> Offset:
        return self._offsets[file_name].get(at, Offset(0))

    # --- changes ---

    def note_cleaned(self, at: TopicPartition, offset: Offset) -> None:
        """Set the end of a log's compacted part, for `write_cleaned`."""
        with self._noting:
            self._offsets[CLEANED_FILE][at] = offset

    def note_high_watermarks(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """Update the high watermarks, for `write_high_watermarks`."""
        with self._noting:
            self._offsets[REPLICATION_FILE].update(high_watermarks)

    def note_log_starts(self, logs: Mapping[TopicPartition, Log]) -> Offsets:
        """Set, and return, the current start of each log, for `write_log_starts`."""
        with self._noting:  # otherwise a concurrent truncation could be overwritten
            starts = {at: log.log_start_offset for at, log in logs.items()}
            self._offsets[LOG_START_FILE].update(starts)
        return starts

    def note_recovery_points(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Set the flushed offset of each log, for `write_recovery_points`."""
        with self._noting:
            # A closed log may be deleted by now, and a new log may have its name.
            flushed = {at: log.flushed_offset for at, log in logs.items() if log.failure is None}
            self._offsets[RECOVERY_POINT_FILE].update(flushed)

    def note_truncated(self, at: TopicPartition, log: Log) -> None:
        """Lower the offsets beyond the log's ends, durably, before records are appended there.

        Raises StorageError.
        """
        with self._noting:
            end_offset = log.log_end_offset
            ends = {  # by the name of the file: (greatest offset, its substitute)
                # An unclean election removes committed records. Their successors are not committed
                # yet.
                REPLICATION_FILE: (end_offset, end_offset),
                RECOVERY_POINT_FILE: (end_offset, log.flushed_offset),
                LOG_START_FILE: (log.log_start_offset, log.log_start_offset),
                CLEANED_FILE: (end_offset, end_offset),
            }
            beyond = [name for name, (end, _) in ends.items() if self._offset(name, at) > end]
            for name in beyond:
                _, self._offsets[name][at] = ends[name]
        for name in beyond:
            self._write(name)

    def note_closed(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Set the start and the end of each cleanly closed log."""
        with self._noting:
            starts = self._offsets[LOG_START_FILE]
            for at, log in logs.items():
                self._offsets[RECOVERY_POINT_FILE][at] = log.flushed_offset
                if not log.is_planned:
                    known = starts.get(at, log.segment_base_offsets[0])
                    starts[at] = max(log.log_start_offset, known)

    def forget(self, at: TopicPartition) -> None:
        """Drop a deleted log; the files follow before a new log gets its name."""
        with self._noting:
            self._pop(at)
            self._deleted.add(at)

    def note_left(self, at: TopicPartition) -> None:
        """Drop the high watermark of a log that the last process has deleted."""
        with self._noting:
            self._offsets[REPLICATION_FILE].pop(at, None)
            self._left.add(at)

    def forget_older(self, at: TopicPartition) -> None:
        """Drop the offsets of an older log of this name, durably. Raises StorageError."""
        with self._noting:
            is_named = self._pop(at) or at in self._deleted
            deleted = set(self._deleted)
        if is_named:
            self.write_all()
            with self._noting:
                self._deleted -= deleted

    def write_deleted(self) -> None:
        """Write high watermarks if their file still has deleted logs. Raises StorageError."""
        with self._noting:
            written = self._written_high_watermarks or self._read_high_watermarks
            is_named = any(written.get(at) for at in self._deleted | self._left)
        if is_named:
            self.write_high_watermarks()

    def _pop(self, at: TopicPartition) -> bool:
        """Drop all offsets of a log; return whether any was above 0."""
        popped = [offsets.pop(at, None) for offsets in self._offsets.values()]
        return any(popped)

    # --- files ---

    def _write(self, file_name: str) -> None:
        with self._writing:
            with self._noting:
                known = dict(self._offsets[file_name])
            is_of_high_watermarks = file_name == REPLICATION_FILE
            if is_of_high_watermarks:
                if self.is_lost or known == self._written_high_watermarks:
                    return
                self._written_high_watermarks = None  # a failed write may leave any content
            with storage_errors(f"cannot checkpoint in {self._directory}"):
                write_offset_checkpoint(self._disk, self._directory, file_name, known)
            if is_of_high_watermarks:
                self._written_high_watermarks = known

    # Each makes the current offsets of one kind durable, and raises StorageError. The file of high
    # watermarks holds all logs, so it is not rewritten without a change. A lost directory shows
    # when the recovery points are written.
    write_high_watermarks = partialmethod(_write, REPLICATION_FILE)
    write_recovery_points = partialmethod(_write, RECOVERY_POINT_FILE)
    write_log_starts = partialmethod(_write, LOG_START_FILE)
    write_cleaned = partialmethod(_write, CLEANED_FILE)

    def write_all(self) -> None:
        """Write all files. Raises StorageError."""
        for name in FILES:
            if name != CLEANED_FILE or self._offsets[name] or self._deleted:
                self._write(name)

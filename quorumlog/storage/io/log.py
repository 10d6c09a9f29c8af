"""A log: segments in one directory, appended to at one end.

Refuses gaps, torn batches and every call after a failed fsync. Decodes records only for a lookup by
timestamp. Sources: Kafka's `UnifiedLog`, `LocalLog`; KAFKA-7866, KAFKA-10706.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final, TypeVar

from quorumlog.storage.core.append_checks import (
    Append,
    LeaderBatch,
    stamped_by_another,
    stamped_by_leader,
)
from quorumlog.storage.core.leader_epochs import LeaderEpochs
from quorumlog.storage.core.recovery import MAX_EPOCH, SegmentScan
from quorumlog.storage.core.segment_index import NO_TIMESTAMP
from quorumlog.storage.core.settings import INT32_MAX, LogSettings
from quorumlog.storage.errors import NO_HANDLES, NO_ROOM, PASSING, OffsetOutOfRange, StorageError
from quorumlog.storage.io.batch_reader import NoteRead, ReadLimits, ReadResult
from quorumlog.storage.io.batch_scan import BrokenSegment
from quorumlog.storage.io.cleaning import Compaction
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache
from quorumlog.storage.io.kept_producers import KeptProducers
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.log_loader import ALL, UNKNOWN, KnownOfLog, LoadedLog, load_log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshots
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList, SegmentSurvey
from quorumlog.storage.io.timestamps import TimeLookup
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader, read_header


class Log:
    """The records [log_start_offset, log_end_offset) of one partition.

    Invariants:
      1. log_start_offset <= log_end_offset, and flushed_offset <= log_end_offset.
      2. Segments are consecutive; only the last one is appended to.
      3. No batch is returned by a read before it is entire in the file, none after truncation.
      4. After a failed fsync or an append that could not be undone, every call raises StorageError:
         the disk may not have the content that reads return. Other failures affect one call.

    Threads: one calls all methods; others may call `flush` and `remove_dead_segments` meanwhile.
    Calls that remove or close files wait for them. Offsets come in as int, and go out as Offset.
    """

    scan: ClassVar[type[SegmentScan]] = SegmentScan  # decides in recovery which batches are whole
    cleaned_by: ClassVar[type[Compaction]] = Compaction

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: LogSettings,
        *,
        segments: SegmentList,
        loaded: LoadedLog,
    ) -> None:
        """Use `Log.open` or `plan_log`."""
        self.directory: Final = directory
        self.settings = settings  # replaceable; each segment's index keeps its first, as in Kafka
        self.epochs: Final = loaded.epochs
        self._segments = segments
        self._snapshots = loaded.snapshots
        self._log_end_offset = segments.active.index.next_offset
        self._log_start_offset = segments.first_base_offset
        self._flushed_offset = min(self._log_end_offset, loaded.durable_end)
        self._flush_lock = lock = threading.Lock()
        self._health: Final = LogHealth(directory)
        self.producers: Final = KeptProducers(loaded, segments, lock=lock, health=self._health)
        self.aborted: Final = segments.transactions.aborted
        self.compaction: Final = self.cleaned_by(disk, directory, segments, self._health)
        self.survey: Final = SegmentSurvey(disk, segments)
        self._is_closed = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        settings: LogSettings,
        *,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        known_end_offset: int = 0,
        note_read: NoteRead = lambda _: None,
        must_last: bool = True,
        must_be_whole: bool = False,
        may_be_torn: bool = True,
        newest_epoch: int = MAX_EPOCH,
    ) -> "Log":
        """Open the log in `directory`, or create one there. Raises StorageError.

        After DiskExhausted it may be opened again, in the same way.
        clean: it was closed by `close(clean=True)` for certain (Kafka's `.kafka_cleanshutdown`).
        Else the segments beyond recovery_point are read, checked, and cut at the first invalid
        byte. Raises DamagedLog if records in [log_start_offset, known_end_offset) are lost, or, if
        it must_be_whole, records behind them: then a half written last batch is damage unless it
        may_be_torn, and a batch of a newer epoch than newest_epoch always is.
        """
        start = UNKNOWN if log_start_offset is None else log_start_offset
        known = clean, recovery_point, start, known_end_offset, cls.scan, must_last, must_be_whole
        of_log = KnownOfLog(*known, may_be_torn, newest_epoch)
        loaded = load_log(disk, directory, settings, of_log, note_read)
        segments = SegmentList(
            *(disk, directory, loaded.segments, loaded.transactions),
            are_named=loaded.durable_end == ALL,
        )
        log = cls(disk, directory, settings, segments=segments, loaded=loaded)
        with log._health.opening():
            if start > log.log_end_offset:  # the lost records were deleted anyway
                log.truncate_fully_and_start_at(start)
            log.advance_log_start_offset(start)
            log.epochs.truncate_from_start(log.log_start_offset)  # the file may have older epochs
            log.epochs.truncate_from_end(log.log_end_offset)
            if must_last:
                log.epochs.write()
            if not loaded.snapshots.is_empty:
                loaded.snapshots.keep_needed(log.segment_base_offsets, log.log_end_offset)
        return log

    @property
    def is_planned(self) -> bool:
        """Whether the log has no files yet: see `plan_log`."""
        return self._segments.active.is_planned

    @property
    def log_start_offset(self) -> Offset:
        """The first offset that may be read."""
        return Offset(self._log_start_offset)

    @property
    def log_end_offset(self) -> Offset:
        """The offset of the next record."""
        return Offset(self._log_end_offset)

    @property
    def flushed_offset(self) -> Offset:
        """Records below it survive power loss."""
        return Offset(self._flushed_offset)

    @property
    def unflushed_offsets(self) -> int:
        """The number of offsets whose records may not survive power loss."""
        return self._log_end_offset - self._flushed_offset

    @property
    def failure(self) -> StorageError | None:
        """Why this log is unusable; None while it is usable."""
        return self._health.failure

    @property
    def size(self) -> int:
        """Bytes in all `.log` files; thread-safe. May read sizes from the disk. Raises OSError."""
        return self._segments.size

    @property
    def segment_base_offsets(self) -> tuple[Offset, ...]:
        """The base offsets of the segments, oldest first."""
        return tuple(Offset(segment.base_offset) for segment in self._segments)

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self._segments.active.base_offset

    # --- appends ---

    def append_as_leader(
        self, batch: Buffer, header: BatchHeader | None = None, *, leader_epoch: int, wall_ms: int
    ) -> Append:
        """Append one batch as `append_run` does; pass its header if you have read it."""
        if header is None:
            header = read_header(batch)
        return self.append_run(((batch, header),), leader_epoch=leader_epoch, wall_ms=wall_ms)

    def append_run(
        self, batches: Sequence[LeaderBatch], *, leader_epoch: int, wall_ms: int
    ) -> Append:
        """Append batches, stamped with the next offsets and this leader epoch, by one write.

        The buffers are neither changed nor copied. Before a segment rolls for a later batch, the
        append ends with the first: then the result describes only that one. wall_ms is for the age
        of a segment without timestamps. Raises CorruptBatch (a buffer is not one whole batch),
        StorageError: then the log is unchanged.
        """
        self._health.require_usable()
        epochs = leader_epoch, self.epochs.latest_epoch
        append = stamped_by_leader(batches, self._log_end_offset, *epochs)
        if len(batches) > 1 and self._may_roll_within(append, wall_ms):
            append = stamped_by_leader(batches[:1], self._log_end_offset, *epochs)
        self._append(append, wall_ms)
        return append

    def append_as_follower(
        self,
        records: Buffer,
        headers: Iterable[tuple[int, BatchHeader]] | None = None,
        *,
        leader_epoch: int | None = None,
    ) -> Append:
        """Append batches that a leader has stamped; a partial batch at the end is left out.

        `headers`: (position, header) of each whole batch, if the caller has read them. With
        leader_epoch, the epoch of the followed leader, a batch of a newer epoch and all after it
        are left out (KAFKA-18723). Raises CorruptBatch (a CRC), UnexpectedOffset (the batches do
        not continue the log), RecordsTooLarge, StorageError: then the log is unchanged.
        """
        self._health.require_usable()
        append = stamped_by_another(
            memoryview(records),
            headers,
            next_offset=self._log_end_offset,
            leader_epoch=leader_epoch,
            latest_epoch=self.epochs.latest_epoch,
            may_have_gaps=self.settings.may_have_gaps,
        )
        if append is None:
            next_offset = self._log_end_offset
            return Append((), (), next_offset, next_offset - 1, 0, NO_TIMESTAMP, ())
        self._append(append, NO_TIMESTAMP)
        return append

    def append_checked(self, append: Append) -> None:
        """Append batches that `usual_copies` has checked for this log end. Raises StorageError."""
        self._health.require_usable()
        self._append(append, NO_TIMESTAMP)

    def _may_roll_within(self, append: Append, wall_ms: int) -> bool:
        """Whether the segment might roll for one of the batches, appended one by one."""
        active, settings = self._segments.active, self.settings
        index = active.index
        is_untimed = min([max_timestamp for _, _, max_timestamp in append.spans]) <= NO_TIMESTAMP
        return not index.size or index.must_roll_for(
            size=append.size,
            last_offset=append.last_offset,
            max_timestamp=max(append.max_timestamp, wall_ms if is_untimed else NO_TIMESTAMP),
            settings=settings,
            segment_ms=settings.segment_ms_of(active.path),
            entries=len(append.spans),
        )

    def _append(self, append: Append, wall_ms: int) -> None:
        chunks, spans, _, last_offset, size, max_timestamp, epoch_starts = append
        active, settings = self._segments.active, self.settings
        segment_ms = settings.segment_ms
        if settings.segment_jitter_ms:
            segment_ms = settings.segment_ms_of(active.path)
        if active.index.must_roll_for(
            size=size,
            last_offset=last_offset,
            max_timestamp=max_timestamp if max_timestamp > NO_TIMESTAMP else wall_ms,
            settings=settings,
            segment_ms=segment_ms,
        ):
            # At the log's end, even if the batches begin later: see `loading._continues`.
            active = self.roll(max(self._log_end_offset, last_offset - INT32_MAX))
        try:
            active.append(chunks, spans)
        except OSError as error:
            if error.errno not in NO_HANDLES:  # without a handle nothing was written
                self._undo_append(error)
            raise self._health.refused("append", error) from error
        if epoch_starts:  # after the append: a failed append must add no epoch
            self.epochs.extend(epoch_starts)
        self._log_end_offset = last_offset + 1  # after both: `flush` relies on it

    def roll(self, base_offset: int) -> Segment:
        """Start a new active segment with this base offset. Raises StorageError."""
        self._health.require_usable()
        try:
            self._segments.roll(base_offset, self.settings)
            return self._segments.active
        except OSError as error:
            if self._segments.has_file(base_offset):  # it would end the log at the next start
                raise self._health.fail("start a segment", error) from error
            raise self._health.refused("start a segment", error) from error

    def _undo_append(self, error: OSError) -> None:
        """Restore the file's size, or fail the log (KAFKA-7866)."""
        try:
            self._segments.active.undo_append()
        except OSError as undo_error:
            raise self._health.fail("undo an append", undo_error) from error
        if error.errno not in NO_ROOM:
            raise self._health.fail("append", error) from error

    # --- reads ---

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        end_offset: int,
        at_least_one: bool = True,
        may_wait: bool = True,
        lend_below: int = 0,
    ) -> ReadResult:
        """Read whole batches of one segment, from the batch of `offset` on, below end_offset.

        They have at most max_bytes; with at_least_one the first batch may be larger. The first
        batch may start before `offset`: readers skip records. Records below lend_below, which are
        hardly ever cut, may be a FileRange if not may_wait. Raises OffsetOutOfRange,
        StorageError; NotInMemory if the read needs the disk and not may_wait.
        """
        self._health.require_usable()
        start, end = self._log_start_offset, self._log_end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"{offset} is not in [{start}, {end}]")
        limits = ReadLimits(max_bytes, min(end_offset, end), at_least_one, may_wait, lend_below)
        with self._health.reading():
            for segment in self._segments_from(offset) if offset < limits.end_offset else ():
                if segment.base_offset > offset and not self.settings.may_have_gaps:
                    raise BrokenSegment(f"{segment.path} is the first with records from {offset}")
                if (found := segment.read(offset, limits)) is not None:
                    return found
        return ReadResult(b"", Offset(offset))

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Iterate over the headers of the batch that holds `from_offset` and of all after it.

        The log may be appended to and read meanwhile, but not truncated. Raises StorageError.
        """
        self._health.require_usable()
        with self._health.reading():
            for segment in self._segments_from(from_offset):
                yield from (header for _, header in segment.headers(from_offset))

    def time_lookup(self) -> TimeLookup:
        """Return a lookup in the current records, for another thread. Raises StorageError."""
        self._health.require_usable()
        return TimeLookup(self._segments, self.log_start_offset)

    def _segments_from(self, offset: int) -> Iterator[Segment]:
        return self._segments.from_offset(offset, flushed_offset=self._flushed_offset)

    # --- durability ---

    def flush(self) -> Offset:
        """Make all current records durable; return the offset after the last of them.

        Safe in another thread: records appended meanwhile may or may not be included. A failed
        fsync is final: the kernel may have dropped the pages. Raises StorageError.
        """
        with self._flush_lock:
            self._health.require_usable()
            end_offset = self._log_end_offset  # first: later records may miss the fsync
            if self.is_planned:  # without records, epochs are not written
                return Offset(end_offset)
            self.epochs.write()
            self._segments.sync(self._flushed_offset, end_offset, self._health)
            self._flushed_offset = end_offset
            return Offset(end_offset)

    def share_flushed_segments(self) -> None:
        """Close the append handles of full, flushed segments. Raises StorageError."""
        with self._health.reading():
            self._segments.share_flushed()

    def close(self, *, clean: bool = True) -> None:
        """Close all files. With `clean`, flush first and write the indexes.

        Raises StorageError: then the log was not closed cleanly.
        """
        if self._is_closed:
            return
        try:
            if clean:
                self.flush()
                with self._health.changing("close", repeatable=PASSING):
                    self._segments.write_active_index()
        finally:
            with self._flush_lock:
                self._segments.close()
                self._is_closed = True
                self._health.end()

    # --- cutting: removals of files wait for a running flush ---

    def truncate_to(self, offset: int) -> None:
        """Cut every batch with offsets from `offset` on, durably, and their epochs.

        The epochs are cut even if the log already ends there (KAFKA-10706); their file follows
        with the next flush. A caller with a recovery point sets it to flushed_offset before the
        next append: records below it are not checked after a crash. Raises StorageError.
        """
        with self._flush_lock:
            self._health.require_usable()
            if offset < self._segments.first_base_offset:
                self._restart_at(offset)
                return
            if offset < self._log_end_offset:
                with self._health.cutting():
                    self._snapshots.drop_above(offset)
                    offset = self._segments.cut(offset)
                    self._set_end(offset)
            self.epochs.truncate_from_end(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all records, durably; the next record gets `offset`. Raises StorageError."""
        with self._flush_lock:
            self._health.require_usable()
            self._restart_at(offset)

    def advance_log_start_offset(self, offset: int) -> None:
        """Advance the log start to `offset`, at most the log's end; a smaller offset is ignored.

        Never waits: full segments below are dead, until `remove_dead_segments`. The caller stores
        the offset for `open`, and cuts the epochs then. Raises OffsetOutOfRange, StorageError.
        """
        self._health.require_usable()
        if offset > self._log_end_offset:
            raise OffsetOutOfRange(f"{offset} is behind the end, {self._log_end_offset}")
        if offset >= self._log_start_offset:  # if equal, the segment below may be full by now
            self._log_start_offset = offset
            self._segments.detach_below(offset)

    @property
    def has_dead_segments(self) -> bool:
        """Whether `remove_dead_segments` has segments to remove."""
        return self._segments.has_dead

    def remove_dead_segments(self) -> None:
        """Delete the files of the segments that lie wholly below the log start, oldest first.

        Safe in another thread. Does nothing if the log is closed. Raises StorageError.
        """
        self.remove_files(self.rename_dead_segments())

    def rename_dead_segments(self) -> list[str]:
        """Rename these files, durably, so that a start removes them; return the new paths.

        Safe in another thread. Does nothing if the log is closed. Raises StorageError.
        """
        with self._flush_lock:
            if self._health.failure is not None:
                return []
            with self._health.changing("delete segments", repeatable=PASSING):
                doomed = self._segments.rename_dead()
                self._snapshots.drop_below(self._segments.first_base_offset)
        return doomed

    def remove_files(self, paths: Sequence[str]) -> None:
        """Remove renamed files: slow, so without the lock of a flush. Safe in another thread.

        If the log is closed, they are left to the next start. Raises StorageError.
        """
        if self._health.failure is None:
            with self._health.changing("delete segments"):
                self._segments.unlink(paths)

    def _restart_at(self, offset: int) -> None:
        with self._health.cutting():
            self._snapshots.drop_above(-1)
            self._segments.restart_at(offset, self.settings)
            self._set_end(offset)
            self._log_start_offset = self._flushed_offset = offset
        self.epochs.clear()

    def _set_end(self, end_offset: int) -> None:
        self._log_end_offset = end_offset
        self._log_start_offset = min(self._log_start_offset, end_offset)
        self._flushed_offset = min(self._flushed_offset, end_offset)


L = TypeVar("L", bound=Log)


def plan_log(
    new_log: type[L],
    disk: Disk,
    directory: str,
    settings: LogSettings,
    make_directory: Callable[[], None],
) -> L:
    """Return an empty log, without files before its first record, and without access to the disk.

    Among many partitions, most stay empty for long: they cost no file, no handle and no read.
    # DEVIATION: Kafka creates the directory of a replica when it creates the replica.
    # docs/decisions/0022-file-handles.md

    `make_directory` makes the directory and the files that must precede a record. It may raise
    OSError; then the append fails, and the next append calls it again.
    """
    segment = Segment(disk, directory, 0, settings, make_directory=make_directory)
    epochs = LeaderEpochCache(disk, directory, LeaderEpochs(), is_first=True)
    loaded = LoadedLog([segment], epochs, ProducerSnapshots(disk, directory, ()))
    segments = SegmentList(disk, directory, loaded.segments, are_named=True)
    return new_log(disk, directory, settings, segments=segments, loaded=loaded)

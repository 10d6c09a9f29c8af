"""A log: segments in one directory, appended to at one end.

Refuses gaps, torn batches and anything after a failed fsync. Looks at no record, but for a lookup
by timestamp. Sources: Kafka's `UnifiedLog`, `LocalLog`; KAFKA-7866, KAFKA-10706.
"""

import threading
from collections.abc import Iterator
from typing import ClassVar, Final

from quorumlog.storage.core.appending import (
    Append,
    AppendInfo,
    stamped_by_another,
    stamped_by_leader,
)
from quorumlog.storage.core.reading import NoteRead, ReadLimits, ReadResult
from quorumlog.storage.core.recovery import MAX_EPOCH, SegmentScan
from quorumlog.storage.core.segment_index import NO_TIMESTAMP
from quorumlog.storage.core.settings import INT32_MAX, LogSettings
from quorumlog.storage.errors import NO_HANDLES, NO_ROOM, PASSING, OffsetOutOfRange, StorageError
from quorumlog.storage.io.batch_scan import BrokenSegment
from quorumlog.storage.io.compaction import Compaction
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.kept_producers import KeptProducers
from quorumlog.storage.io.loading import UNKNOWN, KnownOfLog, LoadedLog, load_log
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList
from quorumlog.storage.io.segment_survey import SegmentSurvey
from quorumlog.storage.io.timestamps import TimeLookup
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader


class Log:
    """The records [log_start_offset, log_end_offset) of one partition.

    Invariants:
      1. log_start_offset <= log_end_offset, and flushed_offset <= log_end_offset.
      2. Segments are consecutive; only the last one is appended to.
      3. No batch is returned by a read before it is entire in the file, none after truncation.
      4. After a failed fsync or an append that could not be undone, every call raises StorageError:
         the file may not be what the system says it is. Other failures are of one call.

    Threads: one calls everything; others may call `flush` and `remove_dead_segments` meanwhile.
    What removes or closes files waits for them. Offsets come in as int, and go out as Offset.
    """

    scan: ClassVar[type[SegmentScan]] = SegmentScan  # tells at a start which batches are whole
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
        self.settings = settings  # may be replaced; each segment's index keeps its own, as in Kafka
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
        """Open the log in `directory`, or make one there. Raises StorageError.

        After DiskExhausted it may be opened again, in the same way.
        clean: `close(clean=True)` was its end, for certain (Kafka's `.kafka_cleanshutdown`). Else
        all that reaches beyond recovery_point is read, checked, cut where it is torn. DamagedLog:
        it is not whole in [log_start_offset, known_end_offset), or, if it must_be_whole, behind it;
        a batch that was half written is damage unless it may_be_torn, one of a newer leader epoch
        than newest_epoch is in any case.
        """
        start = UNKNOWN if log_start_offset is None else log_start_offset
        known = clean, recovery_point, start, known_end_offset, cls.scan, must_last, must_be_whole
        of_log = KnownOfLog(*known, may_be_torn, newest_epoch)
        loaded = load_log(disk, directory, settings, of_log, note_read)
        segments = SegmentList(disk, directory, loaded.segments, loaded.transactions)
        log = cls(disk, directory, settings, segments=segments, loaded=loaded)
        with log._health.opening():
            if start > log.log_end_offset:  # it lost records that were deleted
                log.truncate_fully_and_start_at(start)
            log.advance_log_start_offset(start)
            log.epochs.truncate_from_start(log.log_start_offset)  # the file may know of older ones
            log.epochs.truncate_from_end(log.log_end_offset)
            if must_last:
                log.epochs.write()
            if not loaded.snapshots.is_empty:
                loaded.snapshots.keep_needed(log.segment_base_offsets, log.log_end_offset)
        return log

    @property
    def is_planned(self) -> bool:
        """Whether nothing of it is on the disk yet: see `plan_log`."""
        return self._segments.active.is_planned

    @property
    def log_start_offset(self) -> Offset:
        """The first offset that may be read."""
        return Offset(self._log_start_offset)

    @property
    def log_end_offset(self) -> Offset:
        """The offset that the next record gets."""
        return Offset(self._log_end_offset)

    @property
    def flushed_offset(self) -> Offset:
        """Records below it survive power loss."""
        return Offset(self._flushed_offset)

    @property
    def failure(self) -> StorageError | None:
        """Why this log is of no more use; None while it is."""
        return self._health.failure

    @property
    def size(self) -> int:
        """Bytes in all `.log` files; asks the disk for some. Any thread may ask. Raises OSError."""
        return self._segments.size

    @property
    def segment_base_offsets(self) -> tuple[Offset, ...]:
        """Where the segments start, oldest first."""
        return tuple(Offset(segment.base_offset) for segment in self._segments)

    @property
    def active_base_offset(self) -> int:
        """Where the segment starts that is appended to."""
        return self._segments.active.base_offset

    # --- appends ---

    def append_as_leader(
        self, batch: Buffer, header: BatchHeader | None = None, *, leader_epoch: int, wall_ms: int
    ) -> AppendInfo:
        """Append one batch, giving it the next offsets and this leader epoch.

        The caller has checked the CRC, and gives the header if it has read it. The buffer is
        neither changed nor copied. wall_ms is for the age of a segment without timestamps. Raises
        CorruptBatch (not one whole batch), StorageError: nothing is appended.
        """
        self._health.require_usable()
        append = stamped_by_leader(
            memoryview(batch),
            header,
            next_offset=self._log_end_offset,
            leader_epoch=leader_epoch,
            latest_epoch=self.epochs.latest_epoch,
        )
        return self._append(append, wall_ms)

    def append_as_follower(self, records: Buffer, *, leader_epoch: int | None = None) -> AppendInfo:
        """Append batches that a leader has stamped; a partial batch at the end is left out.

        With leader_epoch, the epoch that is being followed, a batch of a newer epoch and all
        after it are left out (KAFKA-18723). Raises CorruptBatch (a CRC), UnexpectedOffset (the
        batches do not continue the log), RecordsTooLarge, StorageError: nothing is appended.
        """
        self._health.require_usable()
        append = stamped_by_another(
            memoryview(records),
            next_offset=self._log_end_offset,
            leader_epoch=leader_epoch,
            latest_epoch=self.epochs.latest_epoch,
            may_have_gaps=self.settings.may_have_gaps,
        )
        if append is not None:
            return self._append(append, NO_TIMESTAMP)
        return AppendInfo(self.log_end_offset, Offset(self._log_end_offset - 1), NO_TIMESTAMP, 0)

    def _append(self, append: Append, wall_ms: int) -> AppendInfo:
        last_offset, max_timestamp = append.last_offset, append.max_timestamp
        active = self._segments.active
        if active.index.must_roll_for(
            size=append.size,
            last_offset=last_offset,
            max_timestamp=max_timestamp if max_timestamp > NO_TIMESTAMP else wall_ms,
            settings=self.settings,
        ):
            # Where the log ends, even if batches are missing there: see `loading._continues`.
            active = self.roll(max(self._log_end_offset, last_offset - INT32_MAX))
        try:
            active.append(append.chunks, append.spans)
        except OSError as error:
            if error.errno not in NO_HANDLES:  # without a handle nothing was written
                self._undo_append(error)
            raise self._health.refused("append", error) from error
        if append.epoch_starts:  # not of records that found no room: others may come in their place
            self.epochs.extend(append.epoch_starts)
        self._log_end_offset = last_offset + 1  # after both: `flush` relies on it
        first = Offset(append.base_offset)
        return AppendInfo(first, Offset(last_offset), max_timestamp, append.size)

    def roll(self, base_offset: int) -> Segment:
        """Append to a new segment, of this first offset, from now on. Raises StorageError."""
        self._health.require_usable()
        try:
            self._segments.roll(base_offset, self.settings)
            return self._segments.active
        except OSError as error:
            if self._segments.has_file(base_offset):  # it would end the log at the next start
                raise self._health.fail("start a segment", error) from error
            raise self._health.refused("start a segment", error) from error

    def _undo_append(self, error: OSError) -> None:
        """Make the file what it was, or fail the log (KAFKA-7866)."""
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
    ) -> ReadResult:
        """Whole batches of one segment, from the one that holds `offset`, all below end_offset.

        Together they have at most max_bytes; with at_least_one the first may have more. The first
        may start before `offset`: readers skip. Raises OffsetOutOfRange, StorageError; NotInMemory
        if the read must not wait for the disk.
        """
        self._health.require_usable()
        start, end = self._log_start_offset, self._log_end_offset
        if not start <= offset <= end:
            raise OffsetOutOfRange(f"{offset} is not in [{start}, {end}]")
        limits = ReadLimits(max_bytes, min(end_offset, end), at_least_one, may_wait)
        with self._health.reading():
            for segment in self._segments_from(offset) if offset < limits.end_offset else ():
                if segment.base_offset > offset and not self.settings.may_have_gaps:
                    raise BrokenSegment(f"{segment.path} is the first with records from {offset}")
                if (found := segment.read(offset, limits)) is not None:
                    return found
        return ReadResult(b"", Offset(offset))

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Iterate over the headers of the batch that holds `from_offset` and of all after it.

        Append and read while it is used, but do not truncate. Raises StorageError.
        """
        self._health.require_usable()
        with self._health.reading():
            for segment in self._segments_from(from_offset):
                yield from (header for _, header in segment.headers(from_offset))

    def time_lookup(self) -> TimeLookup:
        """Return a lookup of what is in the log now, for another thread. Raises StorageError."""
        self._health.require_usable()
        return TimeLookup(self._segments, self.log_start_offset)

    def _segments_from(self, offset: int) -> Iterator[Segment]:
        return self._segments.from_offset(offset, flushed_offset=self._flushed_offset)

    # --- durability ---

    def flush(self) -> Offset:
        """Make every record that is in the log now durable; return the offset after the last.

        Safe in another thread: what is appended meanwhile may or may not be included. A failed
        fsync is final: the system may have dropped the pages. Raises StorageError.
        """
        with self._flush_lock:
            self._health.require_usable()
            end_offset = self._log_end_offset  # first: what comes later may be missed, not claimed
            if self.is_planned:  # the epochs of no records are not kept
                return Offset(end_offset)
            self.epochs.write()
            self._segments.sync(self._flushed_offset, end_offset, self._health)
            self._flushed_offset = end_offset
            return Offset(end_offset)

    def share_flushed_segments(self) -> None:
        """Let full segments that are flushed have no handle of their own. Raises StorageError."""
        with self._health.reading():
            self._segments.share_flushed()

    def close(self, *, clean: bool = True) -> None:
        """Give up all files. With `clean`, flush first and write the indexes.

        Raises StorageError: then the log must not be said to have been closed cleanly.
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

    # --- cutting: what removes files waits for a flush that is under way ---

    def truncate_to(self, offset: int) -> None:
        """Cut every batch that holds `offset` or more, durably; the epochs with them.

        The epochs are cut even if the log already ends there (KAFKA-10706); their file follows
        with the next flush. A caller that keeps a recovery point writes flushed_offset there
        before the next append: what is below is not checked after a crash. Raises StorageError.
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
        """Drop all, durably; the next record gets `offset`. Raises StorageError."""
        with self._flush_lock:
            self._health.require_usable()
            self._restart_at(offset)

    def advance_log_start_offset(self, offset: int) -> None:
        """Let the log start at `offset`, which is in it or its end; a smaller one is ignored.

        Waits for nothing: full segments below are dead (`remove_dead_segments`). The caller keeps
        the offset for `open`, and cuts the epochs then. Raises OffsetOutOfRange, StorageError.
        """
        self._health.require_usable()
        if offset > self._log_end_offset:
            raise OffsetOutOfRange(f"{offset} is behind the end, {self._log_end_offset}")
        if offset >= self._log_start_offset:  # equal: the segment below may be full since
            self._log_start_offset = offset
            self._segments.detach_below(offset)

    @property
    def has_dead_segments(self) -> bool:
        """Whether there is something for `remove_dead_segments`."""
        return self._segments.has_dead

    def remove_dead_segments(self) -> None:
        """Delete the files of the segments that lie wholly below the log start, oldest first.

        Safe in another thread. Does nothing if the log is closed. Raises StorageError.
        """
        with self._flush_lock:
            if self._health.failure is not None:
                return
            with self._health.changing("delete segments", repeatable=PASSING):
                doomed = self._segments.rename_dead()
                self._snapshots.drop_below(self._segments.first_base_offset)
        with self._health.changing("delete segments"):  # it takes long: a flush may go on
            self._segments.unlink(doomed)

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

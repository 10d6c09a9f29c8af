"""One segment: a `.log` file and its two index files.

The indexes of the active segment live in memory; they are written when it is flushed as a full
segment, or closed. So an append is one system call, and a crash costs a rebuild.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from functools import partial
from typing import Final

from quorumlog.invariants import InvariantViolation
from quorumlog.storage.core.log_index import CorruptIndex, TimeEntry
from quorumlog.storage.core.recovery import MAX_EPOCH, SegmentScan
from quorumlog.storage.core.segment_index import BatchSpan, SegmentIndex
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import NotInMemory
from quorumlog.storage.io.append_handles import AppendFile
from quorumlog.storage.io.batch_reader import BatchReader, NoteRead, ReadLimits, ReadResult
from quorumlog.storage.io.batch_scan import (
    DAMAGED,
    BrokenSegment,
    Pread,
    extend_index,
    require_whole,
)
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.read_handles import ReadableFile
from quorumlog.storage.io.segment_files import CLEANED_SUFFIX, INDEX_SUFFIXES, SegmentFiles
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader

CHUNK_BYTES: Final = 1 << 20  # held in memory at once by the reading thread


def cached_pread(file: ReadableFile, elsewhere: Pread, ahead: int) -> Pread:
    """Return a `pread` of `file` that never waits; `elsewhere` reads it in another thread.

    `ahead`: number of bytes behind the requested bytes that the other thread also reads.
    """

    def pread(size: int, position: int) -> bytes | bytearray:
        data = file.pread_cached(size, position)
        if data is None:
            raise NotInMemory(partial(_bring_in, elsewhere, position, position + size + ahead))
        return data

    return pread


def _bring_in(pread: Pread, start: int, end: int) -> Callable[[], None]:
    while start < end and pread(min(CHUNK_BYTES, end - start), start):
        start += CHUNK_BYTES
    return _nothing


def _nothing() -> None:
    pass


RECOVERY_CHUNK_BYTES: Final = 1 << 20
_logger: Final = logging.getLogger(__name__)


class Segment:
    """Batches [base_offset, next_offset), in bytes [0, size) of one file.

    It is *loaded* (file open, index in memory) or not; methods that need the index load it. A
    *shared* segment is only read. A *planned* segment is empty, and has no file until it changes.

    One thread appends and reads. `sync` may run in another, on a loaded segment that is not
    released, truncated or deleted meanwhile: `Log` ensures this.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        settings: LogSettings,
        *,
        index: SegmentIndex | None = None,
        make_directory: Callable[[], None] | None = None,
    ) -> None:
        """With `index` it is loaded, and only read; with `make_directory` it is planned."""
        self.base_offset: Final = base_offset
        self._disk = disk
        self._directory = directory
        self._files = SegmentFiles(disk, directory, base_offset)
        self._settings = settings
        self._is_shared = index is not None  # full and durable: it is only read
        self._file: ReadableFile | None = None if index is None else disk.open_to_read(self.path)
        self._own_file: AppendFile | None = None  # the same file, while not shared
        self._synced_size = 0  # durable bytes: not read again, even if writes are in doubt
        self._lent_end = 0  # bytes below it may have been lent, and must stay as they are
        self._make_directory = make_directory  # while planned; may raise OSError
        self._index = index or SegmentIndex(base_offset, settings)
        self._written_size: int | None = None  # `.log` bytes that the written indexes describe
        self._damage: BrokenSegment | None = None  # found by a rebuild: later rebuilds raise it

    @classmethod
    def create(
        cls, disk: Disk, directory: str, base_offset: int, settings: LogSettings
    ) -> "Segment":
        """Create an empty segment; its name is durable after an fsync of the directory."""
        segment = cls(disk, directory, base_offset, settings, make_directory=lambda: None)
        segment.make()
        return segment

    @property
    def is_planned(self) -> bool:
        """Whether there is no file yet."""
        return self._make_directory is not None

    def make(self) -> None:
        """Create the empty file of a planned segment. Raises OSError."""
        if self._make_directory is not None:
            self._make_directory()
            self._file = self._own_file = self._disk.open_to_append(self.path, create=True)
            self._make_directory = None

    @property
    def path(self) -> str:
        """The path of the `.log` file."""
        return self._files.stem + ".log"

    @property
    def is_loaded(self) -> bool:
        """Whether it holds an open file and its index, or is planned."""
        return self._file is not None or self.is_planned

    @property
    def index(self) -> SegmentIndex:
        """The index; loads it if need be."""
        if self._file is None and not self.is_planned:
            self.load()
        return self._index

    @property
    def size(self) -> int:
        """Bytes of whole batches; loads nothing."""
        size = self._index.size  # thread-safe
        return size if size or self.is_planned else self._disk.size(self.path)

    @property
    def known_index(self) -> SegmentIndex | None:
        """The index, if it is in memory and describes any batch; thread-safe."""
        index = self._index
        return index if index.size else None

    # --- life ---

    def load(self) -> ReadableFile:
        """Open the file and read the indexes; rebuild those that are missing or corrupt.

        Returns the file. Raises BrokenSegment if the file does not end with a whole batch; OSError.
        """
        own_file = None if self._is_shared else self._disk.open_to_append(self.path)
        file = own_file or self._disk.open_to_read(self.path)
        try:
            size = file.size()
            written_size: int | None = size
            try:
                index = self._files.read_indexes(self.base_offset, self._settings, size)
                index = extend_index(self.path, index, size, file.pread)
            except (CorruptIndex, BrokenSegment) as error:
                index = self._resume_anew(file, size, error)
                written_size = None
        except BaseException:
            file.close()
            raise
        self._file, self._own_file = file, own_file
        self._index, self._written_size, self._synced_size = index, written_size, size
        latest = index.times.last()
        if latest is not None and not self._is_true(latest):
            self._rebuild(CorruptIndex(f"{latest} is not true"))
        return file

    def check(
        self,
        previous_epoch: int,
        note_read: NoteRead,
        new_scan: type[SegmentScan] = SegmentScan,
        *,
        newest_epoch: int = MAX_EPOCH,
    ) -> SegmentScan:
        """Read every batch; the segment then ends before the first invalid batch: see `cut_tail`.

        `note_read` receives the number of bytes of each chunk read. Raises OSError.
        """
        self.release()
        file = self._disk.open_to_append(self.path)
        try:
            size = file.size()
            scan = new_scan(
                self.base_offset,
                self._settings,
                size=size,
                previous_epoch=previous_epoch,
                newest_epoch=newest_epoch,
            )
            while not scan.is_over:
                wanted = max(RECOVERY_CHUNK_BYTES, scan.bytes_wanted)
                start = scan.index.size
                chunk = file.pread(min(wanted, size - start), start)
                scan.feed(memoryview(chunk))
                note_read(len(chunk))
        except BaseException:
            file.close()
            raise
        self._file = self._own_file = file
        self._index, self._written_size, self._synced_size = scan.index, None, 0
        return scan

    def cut_tail(self, *, must_last: bool) -> None:
        """Cut the bytes behind the last whole batch; then, or if `must_last`, sync. OSError."""
        file = self._file_to_change()
        if has_tail := file.size() > self._index.size:
            file.truncate(self._index.size)
        if has_tail or must_last:  # a power loss must not mix the tail with the next append
            self.sync()

    def write_indexes(self) -> bool:
        """Replace both index files (first `seal` them), durably, and all names with them.

        False: the files are already current. Raises OSError.
        """
        index = self._index
        if self._written_size == index.size:
            return False
        self._files.write_indexes(index)
        self._written_size = index.size
        return True

    def drop_indexes(self) -> None:
        """Remove both index files: the next load rebuilds them. Raises OSError."""
        self._written_size = None
        self._files.drop_indexes()

    def sync(self) -> None:
        """Make the current batches durable. Raises OSError: never try again."""
        file = self._own_file
        if file is not None:
            size = self._index.size  # first: later batches may miss the fsync
            changes = file.changes
            file.fsync()
            if file.is_in_doubt:  # see `append_handles`
                require_whole(self.path, self._synced_size, size, file.pread)
                file.settle(changes)
            self._synced_size = size

    def share(self) -> None:
        """Mark the segment as durable, and only read until `reclaim`."""
        if self._own_file is not None:
            self._file = self._disk.open_to_read(self.path)
            self._own_file.close()
            self._own_file = None
        self._is_shared = True

    def reclaim(self) -> None:
        """End `share`: the next load opens a handle for appends."""
        if self._is_shared:
            self.release()
            self._is_shared = False

    def release(self) -> None:
        """Close the file and drop the index, until the next load."""
        file, self._file, self._own_file = self._file, None, None
        if file is not None:
            self._index = SegmentIndex(self.base_offset, self._settings)
            file.close()

    def copy(self) -> "Segment":
        """Return a segment for another thread to read, with the current batches.

        The copy of a shared segment is not loaded; another copy has its index in memory only.
        """
        index = None if self._own_file is None else deepcopy(self._index)
        where = self._disk, self._directory, self.base_offset, self._settings
        copy = Segment(*where, index=index, make_directory=self._make_directory)
        copy.share()
        return copy

    def delete(self) -> None:
        """Remove the files, the `.log` first: index files alone are swept at the next start."""
        self.release()
        self._files.unlink((".log", *INDEX_SUFFIXES))

    def rename_deleted(self, *, indexes: bool = True) -> list[str]:
        """Rename its files (the indexes only if `indexes`), and release it; return the new paths.

        Released after that: a flush must reach the batches of a segment that was not renamed.
        """
        renamed = self._files.rename_deleted(indexes=indexes)
        self.release()
        return renamed

    # --- batches ---

    def append(self, chunks: Sequence[Buffer], spans: Sequence[BatchSpan]) -> None:
        """Write whole batches, described by `spans`, at the end.

        Raises OSError; then part of them may be in the file: `undo_append`.
        """
        (self._own_file or self._file_to_change()).append(chunks)
        add = self._index.add
        for span in spans:
            add(*span)

    def undo_append(self) -> None:
        """Cut the remains of a failed append. Raises OSError."""
        if not self.is_planned:
            self._file_to_change().truncate(self._index.size)

    def truncate_to(self, offset: int) -> int:
        """Cut the batch that holds `offset` and all after it, durably; return the new end."""
        found = self.find(offset)
        if found is None:
            return self._index.next_offset
        position, header = found
        self._written_size = None
        self._files.unlink(INDEX_SUFFIXES)  # it has some if it was a full segment
        file = self._file_to_change()
        if position < self._lent_end:
            file = self._continue_in_another_file(file, position)
        else:
            file.truncate(position)
        self._synced_size = min(self._synced_size, position)
        file.fsync()  # before any append: else a power loss could mix old and new batches
        offsets, times = self._index.offsets, self._index.times
        offsets.truncate_to(header.base_offset)
        times.truncate_to(header.base_offset)
        index = SegmentIndex.resumed(self.base_offset, self._settings, offsets, times)
        self._index = extend_index(self.path, index, position, file.pread)
        return self._index.next_offset

    def _continue_in_another_file(self, file: AppendFile, size: int) -> AppendFile:
        """Replace the file by a copy of its first `size` bytes, durably; return the new file.

        Its lent bytes may still lie in sockets, which have not copied them: a `truncate` would fill
        the rest of a page with zeros, and appends with other batches. Only the election of an
        unclean leader cuts records that could be lent, so the copy is rare.
        """
        if file.is_in_doubt:  # see `append_handles`
            require_whole(self.path, self._synced_size, size, file.pread)
        draft = self.path + CLEANED_SUFFIX
        with closing(self._disk.open(draft, create=True)) as copy:
            copy.truncate(0)  # a draft left behind by an error
            for start in range(0, size, CHUNK_BYTES):
                copy.append([file.pread(min(CHUNK_BYTES, size - start), start)])
            copy.fsync()
        file.close()
        self._disk.rename(draft, self.path)
        self._disk.fsync_dir(self._directory)
        self._file = self._own_file = new_file = self._disk.open_to_append(self.path)
        self._lent_end = 0
        return new_file

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return (position, header) of the batch that holds `offset`, or of the next batch."""
        try:
            return self._batches.find(offset)
        except (CorruptIndex, BrokenSegment) as error:
            self._rebuild(error)
            return self._batches.find(offset)

    def headers(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batch that holds `offset` and of all after it."""
        found = self.find(offset)
        if found is not None:
            yield from self._batches.scan(found[0])

    def headers_since(self, timestamp_ms: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """As `headers`, without leading batches that are all older than `timestamp_ms`."""
        entry = self.index.times.reached_by(timestamp_ms)
        if entry is not None and not self._is_true(entry):
            self._rebuild(CorruptIndex(f"{entry} is not true"))
            entry = self._index.times.reached_by(timestamp_ms)
        return self.headers(max(offset, entry.last_offset) if entry is not None else offset)

    def _is_true(self, entry: TimeEntry) -> bool:
        found = self.find(entry.last_offset)
        return found is not None and entry == (found[1].max_timestamp, found[1].last_offset)

    def read(self, offset: int, limits: ReadLimits) -> ReadResult | None:
        """Read whole batches: see `BatchReader.read`. Raises NotInMemory: it may not wait."""
        if limits.may_wait:
            reader = self._batches
        elif self._file is None and self._is_shared:
            raise NotInMemory(self._bring_in_index)
        else:
            file = self._open_file()
            elsewhere = file.pread if self._is_shared else self._pread_apart
            pread = cached_pread(file, elsewhere, limits.max_bytes)
            reader = BatchReader(self.path, self._index, pread, self._lend)
        try:
            return reader.read(offset, limits)
        except (CorruptIndex, BrokenSegment) as error:
            if self._is_shared and not limits.may_wait:
                raise NotInMemory(partial(self._bring_in_index, error)) from error
            self._rebuild(error)
            return self._batches.read(offset, limits)

    def read_bytes(self, start: int, end: int) -> bytes:
        """Read bytes [start, end) of the file. Raises BrokenSegment if the file ends before."""
        return bytes(self._batches.read_bytes(start, end))

    def _bring_in_index(self, doubt: Exception | None = None) -> Callable[[], None]:
        """Load the index of a full segment in another thread; rebuild it if `doubt` is given."""
        twin = Segment(self._disk, self._directory, self.base_offset, self._settings)
        twin.share()
        twin._damage = self._damage
        try:
            index = twin.index
            if doubt is not None:
                index = twin._rebuild(doubt)
        finally:
            self._damage = twin._damage
        twin.release()
        return partial(self._take_over, index)

    def _take_over(self, index: SegmentIndex) -> None:
        self._file = self._file or self._disk.open_to_read(self.path)
        self._index = index

    def _pread_apart(self, size: int, position: int) -> bytes:
        """Read in another thread, although the log's thread may close the segment's own handle."""
        own_file = self._own_file
        if own_file is not None:
            with suppress(OSError):
                return own_file.pread(size, position)  # also opens it for the next read
        with closing(self._disk.open_to_read(self.path)) as file:
            return file.pread(size, position)

    def _rebuild(self, reason: Exception) -> SegmentIndex:
        self._index = self._resume_anew(self._open_file(), self.index.size, reason)
        self._written_size = None
        return self._index

    def _resume_anew(self, file: ReadableFile, size: int, reason: Exception) -> SegmentIndex:
        """Rebuild the index from all batches, unless this failed before. Raises BrokenSegment."""
        if self._damage is not None:
            raise BrokenSegment(str(self._damage)) from self._damage
        _logger.warning("%s: rebuilding the indexes: %s", self.path, reason)
        try:
            index = SegmentIndex(self.base_offset, self._settings)
            return extend_index(self.path, index, size, file.pread)
        except BrokenSegment as error:
            self._damage = error
            _logger.error(DAMAGED, self.path, error)  # noqa: TRY400 - the cause is in the text
            raise

    @property
    def _batches(self) -> BatchReader:
        return BatchReader(self.path, self.index, self._pread)

    def _lend(self, size: int, position: int) -> FileRange | None:
        lent = self._open_file().lend(size, position)
        if lent is not None:
            self._lent_end = max(self._lent_end, position + size)
        return lent

    def _pread(self, size: int, position: int) -> bytes:
        return self._open_file().pread(size, position)  # it may have been reopened since

    def _file_to_change(self) -> AppendFile:
        self.make()
        if self._file is None:
            self.load()
        if self._own_file is None:
            raise InvariantViolation(f"{self.path} is only read")
        return self._own_file

    def _open_file(self) -> ReadableFile:
        return self._file or self.load()

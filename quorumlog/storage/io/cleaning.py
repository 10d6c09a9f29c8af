"""The rewriting of a log's full segments with the newest record of each key.

It runs beside the log, in slices: it reads immutable files, and writes new ones. The log takes the
new ones over by `Compaction.swap_in`. An empty batch covers the offsets of removed batches, so that
a hole is a fault in every log, compacted or not.
docs/decisions/0025-log-damage.md
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from quorumlog.storage.core.aborted_transactions import SUFFIX as TRANSACTION_SUFFIX
from quorumlog.storage.core.aborted_transactions import (
    AbortedTransaction,
    AbortedTransactions,
    encode_index,
)
from quorumlog.storage.core.cleaning import (
    CleanedTransactions,
    CleaningRules,
    LastBatches,
    NewestOffsets,
)
from quorumlog.storage.core.segment_index import SegmentIndex
from quorumlog.storage.core.settings import INT32_MAX, LogSettings
from quorumlog.storage.io.append_handles import DiskFile
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    segment_path,
)
from quorumlog.storage.io.segment_list import SegmentList
from quorumlog.wire.codec.filtered_batches import empty_batch
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import (
    BatchHeader,
    CorruptBatch,
    iterate_headers,
    read_header,
    validate_batch,
)
from quorumlog.wire.codec.transaction_markers import TransactionMarker, decode_marker

SLICE_BYTES: Final = 256 << 10
GROUP_MAX: Final = 16  # segments joined into one: their swap is work for the event loop


class CleanedSegment(NamedTuple):
    """A new segment, its content durable in `.cleaned` files, and the segments it replaces."""

    new_index: SegmentIndex
    replaces: tuple[int, ...]  # base offsets; the first is also the new segment's
    cuts: int  # truncations of the log before its segments were read
    aborted: Sequence[AbortedTransaction] = ()  # with markers in it, that readers still need


class Cleaning:
    """One pass over the segments of one log, oldest first.

    Invariants:
      1. The batches of a new segment cover the offsets of the segments that it replaces, without
         gaps.
      2. Batches from `rules.end_offset` on stay as they are.
      3. A marker stays while a batch of its transaction stays.
    """

    new_keys: ClassVar[type[NewestOffsets]] = NewestOffsets

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: LogSettings,
        *,
        segments: Sequence[Segment],
        cuts: int,
        rules: CleaningRules,
        aborted: AbortedTransactions,
    ) -> None:
        """Use `Compaction.begin`. The segments are copies, and this pass releases them."""
        self.newest: Final = self.new_keys(rules.first_dirty_offset)
        self._disk: Final = disk
        self._directory: Final = directory
        self._settings: Final = settings
        self._segments: Final = segments
        self._cuts: Final = cuts
        self.io_bytes = 0  # read and written so far
        self.removed_records = 0  # so far
        self._rules: Final = rules
        self._draft: _Draft | None = None  # not yet taken over by the log
        self._last_batches: Final = LastBatches()
        self._aborted: Final = aborted
        self._transactions: CleanedTransactions

    def run(self) -> Iterator[CleanedSegment | None]:
        """Do a slice of the work for each `next`; yield a segment that the log swaps in at once.

        At the end, `newest.end_offset` is the log's first dirty offset. Raises StorageError,
        OSError, CorruptBatch.
        """
        try:
            yield from self._learn()
            self._transactions = self._from_the_start()
            for group in self._groups():
                yield from self._rewrite(group)
        finally:
            for segment in self._segments:
                segment.release()

    def remove_draft(self) -> None:
        """Give up the pass: remove the files of its unfinished segment.

        Call it while no `next` is running, and call no `next` after it. Raises OSError.
        """
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.remove()

    def _learn(self) -> Iterator[None]:
        """Find the newest offset of each key in the dirty part, and each producer's last batch."""
        read = 0
        transactions = self._from_the_start()
        for segment in self._segments:
            for header, batch in batches_of(segment):
                if header.next_offset > self._rules.end_offset:
                    return
                is_dirty = header.next_offset > self._rules.first_dirty_offset
                if header.is_control:
                    transactions.is_last_of_its_transaction(header, _marker_in(batch))
                    is_aborted = False
                else:
                    is_aborted = transactions.is_aborted(header)
                if is_dirty and not self.newest.take(batch, header, is_aborted=is_aborted):
                    return
                self._last_batches.take(header)
                read += header.size_in_bytes
                self.io_bytes += header.size_in_bytes
                if read >= SLICE_BYTES:
                    read = 0
                    yield
            segment.release()  # an index may have megabytes, and there may be many

    def _from_the_start(self) -> CleanedTransactions:
        return CleanedTransactions(self._aborted.reaching_into(0, self._rules.end_offset))

    def _groups(self) -> Iterator[list[Segment]]:
        group: list[Segment] = []
        size = 0
        for segment in self._segments:
            if segment.base_offset >= self.newest.end_offset:
                break
            end_offset = segment.index.next_offset
            size += segment.size
            if group and (
                size > self._settings.segment_bytes
                or end_offset - group[0].base_offset > INT32_MAX
                or len(group) == GROUP_MAX
            ):
                yield group
                group, size = [], segment.size
            group.append(segment)
        if group:
            yield group

    def _rewrite(self, group: list[Segment]) -> Iterator[CleanedSegment | None]:
        draft = _Draft(self._disk, self._directory, group[0].base_offset, self._settings)
        self._draft = draft
        aborted, end_offset = self._transactions.kept_aborted, group[-1].index.next_offset
        aborted.clear()
        read = 0
        is_changed = len(group) > 1
        try:
            for segment in group:
                for header, batch in batches_of(segment):
                    kept = self._cleaned(header, batch)
                    if kept is not batch:
                        is_changed = True
                        left = 0 if kept is None else read_header(kept).record_count
                        self.removed_records += header.record_count - left
                    draft.add(header, kept)
                    read += header.size_in_bytes
                    self.io_bytes += header.size_in_bytes + (0 if kept is None else len(kept))
                    if read >= SLICE_BYTES:
                        read = 0
                        draft.write()
                        yield None
                segment.release()
            if is_changed:
                draft.finish(self._encoded(aborted, group, end_offset))
        finally:
            draft.close()
        if is_changed:
            replaces = tuple(segment.base_offset for segment in group)
            yield CleanedSegment(draft.index, replaces, self._cuts, tuple(aborted))
            self._draft = None
        else:
            self.remove_draft()

    def _encoded(
        self, aborted: Sequence[AbortedTransaction], group: Sequence[Segment], end_offset: int
    ) -> bytes | None:
        """Return the content of a `.txnindex`; None: the segments of the group have none.

        An existing file stays, even if empty: see `swaps`; a later file may name a marker in it.
        """
        base_offset = group[0].base_offset
        paths = [
            segment_path(self._directory, one.base_offset, TRANSACTION_SUFFIX) for one in group
        ]
        if self._aborted.within(base_offset, end_offset) or any(map(self._disk.exists, paths)):
            return encode_index(aborted, self._aborted.newest_below(base_offset))
        return None

    def _cleaned(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        validate_batch(batch, 0, header)
        is_last = (
            self._last_batches.has(header)
            and header.max_timestamp >= self._rules.producers_since_ms
        )
        if not header.is_control:
            is_aborted = self._transactions.is_aborted(header)
            rules, newest = self._rules, self.newest
            return rules.cleaned(batch, header, newest, is_last=is_last, is_aborted=is_aborted)
        marker = _marker_in(batch)
        is_needed = not self._transactions.is_last_of_its_transaction(header, marker)
        if header.next_offset > self.newest.end_offset:
            return batch
        rules = self._rules
        return rules.cleaned_marker(batch, header, is_last=is_last, is_needed=is_needed)


class _Draft:
    """The files of a new segment while they are written."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, settings: LogSettings) -> None:
        self.index: Final = SegmentIndex(base_offset, settings)
        self._disk: Final = disk
        self._directory: Final = directory
        self._file: Final = _new_file(disk, segment_path(directory, base_offset) + CLEANED_SUFFIX)
        self._chunks: list[Buffer] = []
        self._gap: tuple[int, int, int] | None = None  # (first, last offset, leader epoch)

    def add(self, header: BatchHeader, kept: Buffer | None) -> None:
        """Add the next batch: its cleaned form, or None if it goes."""
        if kept is None:
            gap = self._gap
            if gap and gap[2] == header.leader_epoch:  # a segment spans at most INT32_MAX offsets
                self._gap = (gap[0], header.last_offset, gap[2])
            else:
                self._fill_gap()
                self._gap = (header.base_offset, header.last_offset, header.leader_epoch)
            return
        self._fill_gap()
        self._append(kept)

    def _fill_gap(self) -> None:
        if self._gap is not None:
            gap, self._gap = self._gap, None
            self._append(empty_batch(*gap))

    def _append(self, batch: Buffer) -> None:
        header = read_header(batch)
        self._chunks.append(batch)
        self.index.add(header.last_offset, header.size_in_bytes, header.max_timestamp)

    def write(self) -> None:
        """Write the added batches."""
        if self._chunks:
            self._file.append(self._chunks)
            self._chunks = []

    def finish(self, transactions: bytes | None) -> None:
        """Make the content of all files durable, under names that the next start removes.

        transactions: the content of the `.txnindex`; None: no such file.
        """
        self._fill_gap()
        self.write()
        self._file.fsync()
        self.index.seal()
        base_offset = self.index.base_offset
        encoded = {".index": self.index.offsets.encode(), ".timeindex": self.index.times.encode()}
        if transactions is not None:
            encoded[TRANSACTION_SUFFIX] = transactions
        for suffix, content in encoded.items():
            path = segment_path(self._directory, base_offset, suffix) + CLEANED_SUFFIX
            with closing(_new_file(self._disk, path)) as file:
                file.append([content] if content else [])
                file.fsync()

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """Remove the files. If the first was renamed, the log has taken them over."""
        for suffix in (".log", *INDEX_SUFFIXES):
            path = segment_path(self._directory, self.index.base_offset, suffix)
            if self._disk.exists(path + CLEANED_SUFFIX):
                self._disk.unlink(path + CLEANED_SUFFIX)
            elif suffix == ".log":
                return


def _new_file(disk: Disk, path: str) -> DiskFile:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)  # leftovers of an earlier pass
    except BaseException:
        file.close()
        disk.unlink(path)
        raise
    return file


def _marker_in(batch: memoryview) -> TransactionMarker | None:
    """Return the marker in a control batch; None without one. Raises CorruptBatch."""
    try:
        return decode_marker(batch)
    except ValueError as error:
        raise CorruptBatch(str(error)) from error


def batches_of(segment: Segment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield every batch of a full segment, read in chunks. Raises StorageError, OSError."""
    position, end = 0, segment.index.size
    while position < end:
        chunk = segment.read_bytes(position, min(end, position + SLICE_BYTES))
        used = 0
        for at, header in iterate_headers(chunk):
            used = at + header.size_in_bytes
            yield header, memoryview(chunk)[at:used]
        if not used:  # the batch is larger than the chunk
            header = read_header(chunk)
            used = header.size_in_bytes
            yield header, memoryview(segment.read_bytes(position, position + used))
        position += used


@dataclass(eq=False)
class Compaction:
    """The replacement of segments of the log in `directory` by cleaned ones.

    The log's thread calls all methods but `remove_replaced` and `settle`.
    """

    new_pass: ClassVar[type[Cleaning]] = Cleaning

    _disk: Disk
    _directory: str
    _segments: SegmentList
    _health: LogHealth

    @property
    def cuts(self) -> int:
        """The number of truncations of the log's end so far."""
        return self._segments.cuts

    @property
    def swaps(self) -> int:
        """The number of swaps so far; each removes the files of the replaced segments."""
        return self._segments.swaps

    def begin(
        self, rules: CleaningRules, settings: LogSettings, *, flushed_offset: int
    ) -> Cleaning:
        """Return a pass over the full segments below `rules.end_offset` and `flushed_offset`.

        Another thread may run it while the log is used. Raises StorageError.
        """
        self._health.require_usable()
        return self.new_pass(
            self._disk,
            self._directory,
            settings,
            segments=self._segments.full_below(min(rules.end_offset, flushed_offset)),
            cuts=self._segments.cuts,
            rules=rules,
            aborted=self._segments.transactions.aborted,
        )

    def swap_in(self, cleaned: CleanedSegment, settings: LogSettings) -> list[str] | None:
        """Put a cleaned segment in the place of the segments that it replaces.

        Waits for no disk. Returns names for `remove_replaced`; None, without a change, if the log
        has since been truncated or its start has advanced. No other thread may survey the log
        meanwhile. Raises StorageError: the log is then unusable, and the next start completes the
        swap.
        """
        self._health.require_usable()
        if self._segments.cuts != cleaned.cuts:
            return None
        base_offset = cleaned.replaces[0]
        with self._health.changing("swap in a cleaned segment"):
            return self._segments.swap_in(
                cleaned.replaces,
                lambda: Segment(
                    self._disk, self._directory, base_offset, settings, index=cleaned.new_index
                ),
                cleaned.aborted,
            )

    def remove_replaced(self, names: Sequence[str]) -> None:
        """Remove the files that `swap_in` returned. Raises StorageError."""
        renamed = self.settle(names)
        with self._health.changing("remove replaced segments"):
            self._segments.unlink(renamed)

    def settle(self, names: Sequence[str]) -> list[str]:
        """Make a swap durable before its replaced files go: a crash must find the old or the new.

        Index files go at once, if `swap_in` has not renamed them: a later segment of the log may
        take their names. Returns the other `names`, to be removed at any time. Raises StorageError.
        """
        with self._health.changing("replace segments"):
            self._disk.fsync_dir(self._directory)
            self._segments.unlink(name for name in names if not name.endswith(DELETED_SUFFIX))
        return [name for name in names if name.endswith(DELETED_SUFFIX)]

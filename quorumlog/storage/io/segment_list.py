"""The segments of one log: which exist, which are open, which are not durable yet.

Names are changed one at a time, each durably, so that no crash leaves a gap. Segments are in a
list, not in a `SortedDict` by base offset: a second thread copies them during additions and
removals, which only a list does atomically, and thousands of logs have one segment each (72 bytes
against 1,900, and a lookup in half the time).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from operator import attrgetter
from typing import Final

from quorumlog.advances import Advance
from quorumlog.storage.core.aborted_transactions import SUFFIX as TRANSACTION_SUFFIX
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.storage.core.retention import SegmentFacts, aged_ms
from quorumlog.storage.core.segment_index import NO_TIMESTAMP
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import NO_HANDLES, NO_ROOM, PASSING
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_files import (
    CLEANED_SUFFIX,
    LOOKUP_SUFFIXES,
    SWAP_SUFFIX,
    segment_path,
)
from quorumlog.storage.io.transaction_index import TransactionIndex

LOADED_SEGMENTS_MAX: Final = 4  # full, flushed segments that keep their index in memory


class SegmentList:
    """At least one segment, oldest first; the last is active: it receives the appends.

    All methods raise OSError. `sync` and `rename_dead` may run in a second thread, one at a time,
    beside `roll`, `from_offset`, `detach_below` and appends, not beside the rest. A full segment
    keeps a handle of its own until it is flushed. A dead segment is not read any more, but is
    synced until it has lost its name: a crash that left it torn would end the log there.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: list[Segment],
        transactions: TransactionIndex | None = None,
        *,
        are_named: bool,
    ) -> None:
        """`are_named`: the names of the segments are durable; False: the next `sync` syncs them."""
        self.transactions: Final = transactions or TransactionIndex(disk, directory)
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._are_named = are_named
        self.active = segments[-1]
        self.max_timestamps: Final[dict[int, int]] = {}  # of full segments, by base offset
        self._recently_used: list[Segment] = []  # full and flushed, the newest use last
        self._unwritten: list[Segment] = []  # full, with indexes that are not on disk yet
        self._flushed: list[Segment] = []  # full, durable, and still with a handle of its own
        self._dead: list[Segment] = []  # below the log start, oldest first, not yet renamed
        self.cuts = 0  # number of truncations of the log's end
        self.swaps = 0  # number of swaps begun by the cleaner

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def size(self) -> int:
        """Bytes of all living segments; thread-safe: a segment removed meanwhile counts 0."""
        size = 0
        for segment in tuple(self._segments):
            with suppress(FileNotFoundError):
                size += segment.size
        return size

    @property
    def first_base_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self._segments[0].base_offset

    def from_offset(self, offset: int, *, flushed_offset: int) -> Iterator[Segment]:
        """Yield, lazily, the segment that holds `offset` and all segments after it."""
        if offset >= self.active.base_offset:
            yield self.active
            return
        found = self.all_from(offset)
        for segment, following in zip_longest(found, found[1:]):
            if following is not None and following.base_offset <= flushed_offset:
                self._note_use(segment)
            yield segment

    def all_from(self, offset: int) -> list[Segment]:
        """Return the segment that holds `offset`, and all segments after it."""
        slot = bisect_right(self._segments, offset, key=attrgetter("base_offset"))
        return self._segments[max(0, slot - 1) :]

    def share_flushed(self) -> None:
        """Close the append handles of full segments that are flushed now."""
        while self._flushed:
            segment = self._flushed.pop(0)
            if segment.base_offset >= self.first_base_offset:  # else it is dead by now
                self._note_use(segment)

    def _note_use(self, segment: Segment) -> None:
        segment.share()
        if segment in self._recently_used:
            self._recently_used.remove(segment)
        self._recently_used.append(segment)
        if len(self._recently_used) > LOADED_SEGMENTS_MAX:
            self._recently_used.pop(0).release()

    def has_file(self, base_offset: int) -> bool:
        """Whether a `.log` file of this base offset exists."""
        return self._disk.exists(segment_path(self._directory, base_offset))

    def roll(self, base_offset: int, settings: LogSettings) -> None:
        """Start a new active segment. If it raises, an empty file may be left."""
        self.share_flushed()
        segment = Segment.create(self._disk, self._directory, base_offset, settings)
        self.active.index.seal()
        self._unwritten.append(self.active)
        self._segments.append(segment)
        self.active = segment

    def sync(self, flushed_offset: int, end_offset: int, health: LogHealth) -> None:
        """Make the batches in [flushed_offset, end_offset) durable, and indexes of full segments.

        Their names, and the names of the segments after them, become durable, too. Raises
        StorageError: an index without space leaves the log usable; the next call writes it again.
        """
        unwritten, living = tuple(self._unwritten), tuple(self._segments)
        # Dead segments last: a segment that dies meanwhile is then in one of the lists, or in both.
        known = {segment.base_offset: segment for segment in (*living, *self._dead)}
        segments = [known[base_offset] for base_offset in sorted(known)]
        ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
        with health.changing("flush", repeatable=NO_HANDLES):
            for segment, end in zip(segments, ends, strict=True):
                if end > flushed_offset:
                    segment.sync()
        with health.changing("write indexes", repeatable=PASSING):
            self._write_full_indexes(unwritten)

    def _write_full_indexes(self, unwritten: tuple[Segment, ...]) -> None:
        are_named = self._are_named and not unwritten
        for segment in unwritten:
            self.transactions.write(segment.base_offset, segment.index.next_offset)
            are_named = segment.write_indexes()  # syncs all names of the directory
            self.max_timestamps[segment.base_offset] = segment.index.max_timestamp
        if not are_named:  # the log was cut at the start of a segment, which was created again
            self._disk.fsync_dir(self._directory)
        self._are_named = True
        self._flushed += unwritten
        del self._unwritten[: len(unwritten)]

    def write_active_index(self) -> None:
        """Write the active segment's indexes for a clean close: the next start need not read it."""
        if not self.active.is_planned:
            self.active.index.seal()
            self.transactions.write(self.active.base_offset, self.active.index.next_offset)
            try:
                self.active.write_indexes()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                self.active.drop_indexes()

    def keep_transactions(self, from_offset: int) -> None:
        """Rewrite, durably, the aborted transactions of full segments from `from_offset` on."""
        for segment, following in pairwise(self._segments):
            if segment.base_offset >= from_offset:
                self.transactions.write(segment.base_offset, following.base_offset)
        self._disk.fsync_dir(self._directory)

    def cut(self, offset: int) -> int:
        """Cut every batch with offsets from `offset` on, durably; return the new end offset."""
        self.cuts += 1
        while len(self._segments) > 1 and self._segments[-1].base_offset >= offset:
            self._delete(-1)
        self.active = self._segments[-1]
        self._forget(self.active)
        self.active.reclaim()
        end_offset = self.active.truncate_to(offset)
        self.transactions.aborted.cut(end_offset)
        return end_offset

    def restart_at(self, offset: int, settings: LogSettings) -> None:
        """Remove all segments, durably; continue with an empty segment at `offset`."""
        self.cuts += 1
        self.active.make()  # it also makes the directory
        self.unlink(self.rename_dead())
        while self._segments:
            self._delete(-1)
        self.active = Segment.create(self._disk, self._directory, offset, settings)
        self._segments.append(self.active)
        self.transactions.aborted.cut(0)
        self._disk.fsync_dir(self._directory)

    def detach_below(self, offset: int) -> None:
        """Make the full segments dead that end at or below `offset`, without access to the disk."""
        count = bisect_right(self._segments, offset, key=attrgetter("base_offset")) - 1
        if count > 0:
            dead = self._segments[:count]
            self._dead += dead  # first: see `sync`
            del self._segments[:count]
            self._recently_used = [one for one in self._recently_used if one not in dead]
            self.transactions.aborted.drop_below(self.first_base_offset)

    @property
    def has_dead(self) -> bool:
        """Whether dead segments still have their own names."""
        return bool(self._dead)

    def rename_dead(self) -> list[str]:
        """Rename the files of dead segments, durably, for removal; return the new paths.

        The oldest first, each durable before the next, so that no crash leaves a hole. A start
        ignores the new names.
        """
        renamed = []
        while self._dead:
            segment = self._dead[0]
            renamed += segment.rename_deleted()
            self._disk.fsync_dir(self._directory)
            if segment in self._unwritten:
                self._unwritten.remove(segment)
            self.max_timestamps.pop(segment.base_offset, None)
            del self._dead[0]
        return renamed

    def unlink(self, paths: Iterable[str]) -> None:
        """Remove unused files, as far as they exist: the log may have been deleted meanwhile."""
        for path in paths:
            with suppress(FileNotFoundError):
                self._disk.unlink(path)

    def full_below(self, offset: int) -> list[Segment]:
        """Return copies of the full segments below `offset` whose indexes are written."""
        full = []
        for segment, following in pairwise(self._segments):
            if following.base_offset > offset or segment in self._unwritten:
                break
            full.append(segment.copy())
        return full

    def swap_in(
        self,
        base_offsets: Sequence[int],
        new: Callable[[], Segment],
        aborted: Sequence[AbortedTransaction],
    ) -> list[str] | None:
        """Replace the consecutive segments at these base offsets by a cleaned segment.

        Names change in an order that every start can complete, without waiting for the disk.
        Returns the paths to remove; None if the list has not exactly these segments any more.
        """
        slot = bisect_right(self._segments, base_offsets[0] - 1, key=attrgetter("base_offset"))
        old = self._segments[slot : slot + len(base_offsets)]
        if [one.base_offset for one in old] != list(base_offsets) or self.active in old:
            return None
        self.swaps += 1  # first: from here on another thread may find a name missing
        path = segment_path(self._directory, base_offsets[0])
        self._disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
        renamed = old[0].rename_deleted()
        for segment in old[1:]:  # a start removes index files without a `.log`
            renamed += segment.rename_deleted(indexes=False)
        transactions_path = segment_path(self._directory, base_offsets[0], TRANSACTION_SUFFIX)
        if self._disk.exists(transactions_path + CLEANED_SUFFIX):  # before the `.log`: see `swaps`
            self._disk.rename(transactions_path + CLEANED_SUFFIX, transactions_path)
        self._disk.rename(path + SWAP_SUFFIX, path)
        for suffix in LOOKUP_SUFFIXES:
            index_path = segment_path(self._directory, base_offsets[0], suffix)
            self._disk.rename(index_path + CLEANED_SUFFIX, index_path)
        end_offset = self._segments[slot + len(old)].base_offset
        self.transactions.aborted.replace(base_offsets[0], end_offset, aborted)
        for segment in old:
            self._forget(segment)
        self._segments[slot : slot + len(old)] = [new()]
        self._note_use(self._segments[slot])
        return renamed

    def close(self) -> None:
        """Close all files."""
        for segment in (*self._segments, *self._dead):
            segment.release()

    def _delete(self, slot: int) -> None:
        segment = self._segments.pop(slot)
        self._forget(segment)
        segment.delete()
        self._disk.fsync_dir(self._directory)

    def _forget(self, segment: Segment) -> None:
        """Remove the state of a full segment that was removed or becomes active again."""
        self.max_timestamps.pop(segment.base_offset, None)
        for segments in (self._recently_used, self._unwritten, self._flushed):
            if segment in segments:
                segments.remove(segment)


@dataclass(eq=False)
class SegmentSurvey:
    """Survey of one log. Another thread may use it, but not while the log is cut or closed."""

    _disk: Disk
    _segments: SegmentList

    def facts(self, advances: Sequence[Advance] = ()) -> list[SegmentFacts]:
        """Return the facts of all living segments, oldest first; `aged_ms`. Raises OSError.

        It may read an index of each segment, once: the log remembers the largest timestamp. The
        list is empty if the cleaner swaps segments meanwhile, as it might have a gap, and before
        the log has its first file.
        """
        swaps = self._segments.swaps
        found = []
        for segment in tuple(self._segments):
            try:
                found.append(self._facts_of(segment, advances))
            except FileNotFoundError:
                if segment.base_offset >= self._segments.first_base_offset:
                    return []  # its name is missing during a swap
                # else this segment and all older ones are dead by now
        return found if self._segments.swaps == swaps else []

    def first_timestamp_from(self, offset: int, advances: Sequence[Advance] = ()) -> int:
        """Return the time of the first batch of the segment with `offset`. Raises OSError.

        It reads only that batch's header; `aged_ms`. -1: the segment is gone, or has no timestamp.
        """
        for segment in self._segments.all_from(offset)[:1]:
            copy = segment.copy()
            try:
                with suppress(FileNotFoundError):
                    for _, header in copy.headers(copy.base_offset):
                        return self._aged(segment, header.max_timestamp, advances)
            finally:
                copy.release()
        return NO_TIMESTAMP

    def _aged(self, segment: Segment, newest_ms: int, advances: Sequence[Advance]) -> int:
        if not advances or newest_ms <= NO_TIMESTAMP:
            return newest_ms
        return aged_ms(newest_ms, self._disk.modified_ms(segment.path), advances)

    def _facts_of(self, segment: Segment, advances: Sequence[Advance]) -> SegmentFacts:
        index = segment.known_index
        if index is not None:
            newest_ms, size = index.max_timestamp, index.size
        elif size := segment.size:
            newest_ms = self._newest_ms(segment)
        else:
            newest_ms = NO_TIMESTAMP
        if newest_ms <= NO_TIMESTAMP:
            newest_ms = self._disk.modified_ms(segment.path)
        return SegmentFacts(segment.base_offset, size, self._aged(segment, newest_ms, advances))

    def _newest_ms(self, segment: Segment) -> int:
        known = self._segments.max_timestamps
        newest_ms = known.get(segment.base_offset)
        if newest_ms is None:
            copy = segment.copy()
            newest_ms = known[segment.base_offset] = copy.index.max_timestamp
            copy.release()  # there may be many indexes of megabytes
        return newest_ms

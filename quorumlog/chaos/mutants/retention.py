"""Logs that delete or compact wrongly, with one broken rule each."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, Final, cast
from zlib import crc32

from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.parts import HandsOn, Parts, of_every_log
from quorumlog.chaos.mutants.storage import NotFlushed
from quorumlog.storage.core.cleaning import CleanableRange, CleaningRules, NewestOffsets
from quorumlog.storage.core.retention import Retention, RetentionLimits, SegmentFacts
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.cleaning import CleanedSegment, Cleaning, Compaction
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_files import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX
from quorumlog.storage.io.timestamps import Found, TimeLookup
from quorumlog.wire.codec.filtered_batches import DELETE_HORIZON_BIT, RawRecord
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader, decode_batch, encode_batch, read_header

# ruff: noqa: ARG002 - a mutant has the signature of the replaced method


def _compacting(broken: type[Any]) -> Parts:
    if issubclass(broken, CleaningRules):
        return of_every_log(_compacted_by(_with_rules(broken)))
    if issubclass(broken, NewestOffsets):
        return of_every_log(_compacted_by(_with_pass(_with_keys(broken))))
    if issubclass(broken, Cleaning):
        return of_every_log(_compacted_by(_with_pass(broken)))
    if issubclass(broken, Compaction):
        return of_every_log(_compacted_by(broken))
    return of_every_log(broken)


def _compacted_by(compaction: type[Compaction]) -> type[Log]:
    class Mutant(Log):
        cleaned_by = compaction

    return Mutant


def _with_pass(cleaning: type[Cleaning]) -> type[Compaction]:
    class Mutant(Compaction):
        new_pass = cleaning

    return Mutant


def _with_keys(newest: type[NewestOffsets]) -> type[Cleaning]:
    class Mutant(Cleaning):
        new_keys = newest

    return Mutant


def _with_rules(broken: type[CleaningRules]) -> type[Compaction]:
    class Mutant(Compaction):
        def begin(self, rules: CleaningRules, settings: LogSettings, **known: Any) -> Cleaning:
            sound = {field.name: getattr(rules, field.name) for field in fields(rules)}
            return super().begin(broken(**sound), settings, **known)

    return Mutant


Facts = Sequence[SegmentFacts]
RETENTION: Final = Mutants("storage", _compacting)


# --- retention ---


@RETENTION.breaks("retention removes uncommitted records")
class _RemovesWhatIsNotCommitted(Retention):
    def is_committed(self, end: int, high_watermark: int) -> bool:
        return True


@RETENTION.breaks("a log with unlimited retention.ms loses its old records")
class _TakesNoLimitForZero(Retention):
    def has_expired(self, segment: SegmentFacts, limits: RetentionLimits, wall_ms: int) -> bool:
        limited = replace(limits, max_age_ms=max(0, limits.max_age_ms))
        return super().has_expired(segment, limited, wall_ms)


class _Start(Retention):
    """Changes the arguments of the rule."""

    def start_after(self, segments: Facts, limits: RetentionLimits, **offsets: int) -> int:
        segments, limits = self.changed(segments, limits)
        return super().start_after(segments, limits, **offsets)

    def changed(self, segments: Facts, limits: RetentionLimits) -> tuple[Facts, RetentionLimits]:
        raise NotImplementedError


@RETENTION.breaks("retention by size removes a segment that fits within the limit")
class _RemovesOneTooMany(_Start):
    def changed(self, segments: Facts, limits: RetentionLimits) -> tuple[Facts, RetentionLimits]:
        less = max(0, limits.max_bytes - segments[0].size) if limits.max_bytes >= 0 else -1
        return segments, replace(limits, max_bytes=less)


@RETENTION.breaks("retention by size keeps a segment above the limit")
class _LeavesOneTooMany(_Start):
    def changed(self, segments: Facts, limits: RetentionLimits) -> tuple[Facts, RetentionLimits]:
        more = limits.max_bytes + segments[0].size if limits.max_bytes >= 0 else -1
        return segments, replace(limits, max_bytes=more)


@RETENTION.breaks(
    "a segment's age is that of its oldest record: younger records are deleted with it"
)
class _AgesByTheOldestRecord(_Start):
    def changed(self, segments: Facts, limits: RetentionLimits) -> tuple[Facts, RetentionLimits]:
        times = [segments[0].newest_ms, *(segment.newest_ms for segment in segments)]
        older = [one._replace(newest_ms=at) for one, at in zip(segments, times, strict=False)]
        return older, limits


@RETENTION.breaks("deleting an old segment also deletes a younger segment before it")
class _PassesOverYoungSegments(Retention):
    def start_after(self, segments: Facts, limits: RetentionLimits, **known: int) -> int:
        start = super().start_after(segments, limits, **known)
        for segment, following in pairwise(segments):
            end = following.base_offset
            is_committed = end <= known["high_watermark"]
            if is_committed and self.has_expired(segment, limits, known["wall_ms"]):
                start = max(start, end)
        return start


@RETENTION.breaks("old segments stay while the log has a young record")
class _GoesByTheYoungestOfAll(_Start):
    def changed(self, segments: Facts, limits: RetentionLimits) -> tuple[Facts, RetentionLimits]:
        youngest_ms = max(segment.newest_ms for segment in segments)
        return [one._replace(newest_ms=youngest_ms) for one in segments], limits


# --- where a log starts ---


@RETENTION.breaks("a restarted log loses its log start offset: deleted records return")
class _ForgetsWhereItStarts(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> Log:
        known["log_start_offset"] = None
        return super().open(disk, directory, settings, **known)


@RETENTION.breaks("the segments of deleted records are never removed")
class _LeavesDeadSegments(Log):
    def rename_dead_segments(self) -> list[str]:
        return []


@RETENTION.breaks("the segment with the log start offset is deleted with the segments below it")
class _RemovesWhereItStarts(Log):
    def advance_log_start_offset(self, offset: int) -> None:
        super().advance_log_start_offset(offset)
        behind = [base for base in self.segment_base_offsets if base > offset]
        if behind:
            self._segments.detach_below(behind[0])


@RETENTION.breaks("dead segments are renamed newest first: a crash leaves a hole")
class _RemovesTheNewestFirst(Log):
    def rename_dead_segments(self) -> list[str]:
        self._segments._dead.reverse()  # noqa: SLF001 - broken
        return super().rename_dead_segments()


@RETENTION.breaks("deleted records are readable while their segment exists")
class _DeletesWholeSegmentsAlone(Log):
    def advance_log_start_offset(self, offset: int) -> None:
        held_by = [base for base in self.segment_base_offsets if base <= offset]
        super().advance_log_start_offset(max([self.log_start_offset, *held_by[-1:]]))


@RETENTION.breaks("recovery checks only the last segment, not all unflushed segments")
class _BelievesAllButTheLast(Log):
    @classmethod
    def open(cls, disk: Disk, directory: str, settings: LogSettings, **known: Any) -> Log:
        known["recovery_point"] = 1 << 62
        return super().open(disk, directory, settings, **known)


class _PassingOver(TimeLookup):
    def first_since(self, timestamp_ms: int) -> Found | None:
        return super().first_since(timestamp_ms + 1)


@RETENTION.breaks("a lookup by time skips a record with exactly that timestamp")
class _PassesOverTheTime(Log):
    def time_lookup(self) -> TimeLookup:
        return _PassingOver(self._segments, self.log_start_offset)


@RETENTION.breaks("a lookup by time returns a deleted record")
class _FindsDeletedRecords(Log):
    def time_lookup(self) -> TimeLookup:
        return TimeLookup(self._segments, Offset(0))


# --- the records that compaction keeps ---


@RETENTION.breaks("compaction drops the newest record of a key")
class _DropsTheNewest(CleaningRules):
    def is_kept(self, record: RawRecord, offset: int, newest: NewestOffsets, *horizon: Any) -> bool:
        return super().is_kept(record, offset - 1, newest, *horizon)


@RETENTION.breaks("compaction drops every record of one key in six")
class _DropsTheNewestOfSomeKeys(CleaningRules):
    def is_kept(self, record: RawRecord, *known: Any) -> bool:
        is_dropped = record.key is not None and crc32(record.key) % 6 == 0
        return not is_dropped and super().is_kept(record, *known)


@RETENTION.breaks("compaction drops tombstones at once: a reader keeps a deleted key")
class _DropsTombstonesAtOnce(CleaningRules):
    def is_kept(self, record: RawRecord, *known: Any) -> bool:
        return not record.is_tombstone and super().is_kept(record, *known)


@RETENTION.breaks("tombstones are never removed")
class _KeepsTombstonesForEver(CleaningRules):
    def is_kept(self, record: RawRecord, offset: int, newest: NewestOffsets, *_: Any) -> bool:
        return super().is_kept(record, offset, newest, None)


@RETENTION.breaks("each pass gives tombstones a new delete horizon (before KIP-534)")
class _RenewsTheDeleteHorizon(CleaningRules):
    def cleaned(
        self, batch: Buffer, header: BatchHeader, newest: NewestOffsets, **known: bool
    ) -> Buffer | None:
        unmarked = header._replace(attributes=header.attributes & ~DELETE_HORIZON_BIT)
        return super().cleaned(batch, unmarked, newest, **known)


@RETENTION.breaks("compaction drops a producer's last batch: its duplicates are not detected")
class _ForgetsLastSequences(CleaningRules):
    def cleaned(
        self, batch: Buffer, header: BatchHeader, newest: NewestOffsets, **known: bool
    ) -> Buffer | None:
        return super().cleaned(batch, header, newest, **{**known, "is_last": False})


@RETENTION.breaks("compaction renumbers the remaining records")
class _NumbersRecordsAnew(CleaningRules):
    def cleaned(
        self, batch: Buffer, header: BatchHeader, newest: NewestOffsets, **known: bool
    ) -> Buffer | None:
        kept = super().cleaned(batch, header, newest, **known)
        if kept is None or kept is batch or not read_header(kept).record_count:
            return kept
        first = header.base_offset
        records = [one._replace(offset=first + at) for at, one in enumerate(decode_batch(kept))]
        return encode_batch(records, base_offset=first, leader_epoch=header.leader_epoch)


@RETENTION.breaks("compaction continues above the high watermark")
class _CleansWhatIsNotCommitted(Compaction):
    def begin(self, rules: CleaningRules, settings: LogSettings, **known: Any) -> Cleaning:
        return super().begin(replace(rules, end_offset=1 << 62), settings, **known)


@RETENTION.breaks("compaction continues past the last stable offset, up to the high watermark")
class _CleansOpenTransactions(CleanableRange):
    def decided_end(self, high_watermark: int, last_stable_offset: int) -> int:
        return high_watermark


@RETENTION.breaks("two keys of the same length count as one key")
class _MixesKeysUp(NewestOffsets):
    def is_replaced(self, key: bytes, offset: int) -> bool:
        newest = max(self._offsets.values(), default=-1)
        return newest > offset or super().is_replaced(key, offset)


@RETENTION.breaks("compaction keeps the oldest record of a key, not the newest")
class _KeepsTheOldest(NewestOffsets):
    def is_replaced(self, key: bytes, offset: int) -> bool:
        return not super().is_replaced(key, offset)


@RETENTION.breaks("a pass indexes only the keys of batches without a producer id")
class _ForgetsKeysOfProducers(NewestOffsets):
    def take(self, batch: Buffer, header: BatchHeader, **known: bool) -> bool:
        if header.producer_id >= 0:
            self.end_offset = header.next_offset
            return True
        return super().take(batch, header, **known)


@RETENTION.breaks("a pass with a full key map drops keys and continues")
class _ForgetsKeysWhenFull(NewestOffsets):
    def take(self, batch: Buffer, header: BatchHeader, **known: bool) -> bool:
        if len(self._offsets) >= 4:
            self._offsets.clear()
        return super().take(batch, header, **known)


@RETENTION.breaks("a pass marks more of the log as clean than it has read")
class _ClaimsMoreThanItHasCleaned(Cleaning):
    def run(self) -> Iterator[CleanedSegment | None]:
        yield from super().run()
        self.newest.end_offset += 100


@RETENTION.breaks("compaction rewrites only the dirty part: old records of its keys stay")
class _CleansTheDirtyPartAlone(Cleaning):
    def _groups(self) -> Iterator[list[Segment]]:
        for group in super()._groups():
            if group[0].base_offset >= self._rules.first_dirty_offset:
                yield group


# --- how cleaned segments take the place of others ---


@RETENTION.breaks("a cleaned segment replaces others before it is flushed")
class _CleanedSegmentsAreNotFlushed(NotFlushed):
    files = f"{re.escape(CLEANED_SUFFIX)}$"


@RETENTION.breaks("a start does not complete an interrupted swap of segments")
class _SwapsAreForgotten(HandsOn):
    def listdir(self, path: str) -> list[str]:
        return [name for name in self._real.listdir(path) if not name.endswith(SWAP_SUFFIX)]


@RETENTION.breaks("old segments are removed before the cleaned segment is renamed to .swap")
class _SwapsBeginTooLate(HandsOn):
    def rename(self, source: str, target: str) -> None:
        if target.endswith(SWAP_SUFFIX):
            return
        if source.endswith(SWAP_SUFFIX):
            source = source.removesuffix(SWAP_SUFFIX) + CLEANED_SUFFIX
        self._real.rename(source, target)


@RETENTION.breaks("a start that completes a swap removes only the first of the old segments")
class _LeavesSwappedSegments(HandsOn):
    def __init__(self, real: Disk) -> None:
        super().__init__(real)
        self._interrupted: set[str] = set()  # swaps that a start has found, of this life

    def listdir(self, path: str) -> list[str]:
        names = self._real.listdir(path)
        self._interrupted |= {f"{path}/{name}" for name in names if name.endswith(SWAP_SUFFIX)}
        return cast(list[str], names)

    def rename(self, source: str, target: str) -> None:
        is_first = source + SWAP_SUFFIX in self._interrupted
        is_left = self._interrupted and target == source + DELETED_SUFFIX and not is_first
        self._interrupted.discard(source)
        if not is_left:
            self._real.rename(source, target)

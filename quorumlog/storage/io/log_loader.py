"""Opening a log: remove leftovers of a crash, find the segments, recover the tail.

Source: Kafka's `LogLoader`.
"""

import logging
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from quorumlog.storage.core.aborted_transactions import SUFFIX as TRANSACTION_SUFFIX
from quorumlog.storage.core.recovery import MAX_EPOCH, RecentBatches, SegmentScan
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import CorruptCheckpoint, DamagedLog, storage_errors
from quorumlog.storage.io.batch_reader import NoteRead
from quorumlog.storage.io.batch_scan import BrokenSegment
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.epoch_checkpoint import FILE_NAME as EPOCH_FILE
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache
from quorumlog.storage.io.producer_snapshots import ProducerSnapshots
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_chain import complete_swaps, holes
from quorumlog.storage.io.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SWAP_SUFFIX,
    SegmentFiles,
)
from quorumlog.storage.io.transaction_index import ALL_KNOWN, TransactionIndex
from quorumlog.wire.codec.identifiers import NO_EPOCH

EPOCHS_CHECKED: Final = 10  # the newest epochs


def contradiction(epochs: LeaderEpochCache, segment: Segment) -> str | None:
    """Describe a batch whose epoch differs from that in a file without a checksum; None: all agree.

    A few headers suffice: the first, the last, and those on both sides of each change of epoch. A
    file that contradicts them is rebuilt from the log: docs/decisions/0014-whole-logs.md

    The segment is loaded: the last segment that recovery has not read. Its readers report damage
    of it. Raises OSError.
    """
    if not epochs.entries:
        return None
    start = epochs.entries[0].start_offset  # it may lie within a batch, as the log's start may
    try:
        end = segment.index.next_offset
        offsets = {segment.base_offset, end - 1}
        for _, start_offset in epochs.entries[-EPOCHS_CHECKED:]:
            offsets |= {start_offset - 1, start_offset}
        for offset in sorted(offsets):
            found = segment.find(offset) if segment.base_offset <= offset < end else None
            if found is None or found[1].last_offset < start:
                continue
            header = found[1]
            for at in (max(header.base_offset, start), header.last_offset):
                epoch = epochs.epoch_at(at)
                if epoch != header.leader_epoch:
                    return f"offset {at} is of epoch {header.leader_epoch}, and not of {epoch}"
    except BrokenSegment:
        pass
    return None


SEGMENT_FILE: Final = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")
LEFTOVERS: Final = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")

ALL: Final = 2**63 - 1  # an offset above all others

_logger: Final = logging.getLogger(__name__)


class LoadedLog(NamedTuple):
    """The parts of an opened log; records below `durable_end` are durable.

    The last segment is loaded.
    """

    segments: list[Segment]
    epochs: LeaderEpochCache
    snapshots: ProducerSnapshots
    recent: RecentBatches | None = None  # of the checked segments, up to the log's end
    durable_end: int = ALL
    transactions: TransactionIndex | None = None  # None: the log has no records


class Scanned(NamedTuple):
    """The result of recovery: it has read the batches from `from_offset` on."""

    from_offset: int
    epoch_starts: list[tuple[int, int]]  # (leader epoch, first offset)
    recent: RecentBatches | None = None  # of the last consecutive checked segments
    has_transactions: bool = False


NOT_SCANNED: Final = Scanned(ALL, [])
UNKNOWN: Final = -1


class KnownOfLog(NamedTuple):
    """Facts about a log from before it is opened. Offsets; `end` is exclusive.

    Records below `recovery_point` need no check. The log had all records in [start, end); `start`
    may be UNKNOWN. `scan` decides which batches are whole. If the log `must_last`, recovered
    batches are made durable. If it `must_be_whole`, a log with an invalid tail is refused instead
    of cut; a half written last batch is cut even then if it `may_be_torn`.
    """

    is_clean: bool  # it was closed cleanly
    recovery_point: int = 0
    start: int = UNKNOWN
    end: int = 0
    scan: type[SegmentScan] = SegmentScan
    must_last: bool = True
    must_be_whole: bool = False
    may_be_torn: bool = True
    newest_epoch: int = MAX_EPOCH  # the newest leader epoch that may have written records


def load_log(
    disk: Disk, directory: str, settings: LogSettings, known: KnownOfLog, note_read: NoteRead
) -> LoadedLog:
    """Make the directory and its first segment if need be. See `Log.open`. Raises StorageError."""
    with storage_errors(f"cannot open the log in {directory}"):
        return _load(disk, directory, settings, known, note_read)


def _load(
    disk: Disk, directory: str, settings: LogSettings, known: KnownOfLog, note_read: NoteRead
) -> LoadedLog:
    names = _listed(disk, directory)
    base_offsets, snapshots = _sweep(disk, directory, names)
    segments = [Segment(disk, directory, offset, settings) for offset in base_offsets]
    if segments and known.end and UNKNOWN < known.start < segments[0].base_offset:
        where = f"{segments[0].path} is the first segment"
        raise _lacking(where, known.start, segments[0].base_offset)
    if known.is_clean and segments:
        try:
            segments[-1].load()
        except BrokenSegment as error:
            _logger.warning("%s was closed cleanly, and yet: %s", directory, error)
            checked = max(known.recovery_point, segments[-1].base_offset)
            known = known._replace(is_clean=False, recovery_point=checked)
        else:
            last = segments[-1]
            _require_reached(last.index.next_offset, known, f"{last.path} is the last segment")
            _require_chain(disk, directory, segments, settings, known)
    if not segments:
        _require_reached(max(0, known.start), known, f"{directory} has no segment")
    scanned, durable_end = NOT_SCANNED, ALL
    if not known.is_clean:
        scanned = _recover(disk, directory, segments, settings, known, note_read=note_read)
    if not segments:  # the first flush makes the name durable: it writes the epochs beside it
        segments.append(Segment.create(disk, directory, 0, settings))
    elif not known.is_clean and segments[-1].index.next_offset > known.recovery_point:
        if known.must_last:
            disk.fsync_dir(directory)  # not needed without records above the recovery point
        else:  # the next flush makes records and names durable, after the epochs found here
            durable_end = known.recovery_point
    has_epochs = EPOCH_FILE in names
    epochs = _open_epochs(disk, directory, segments, scanned, known, has_file=has_epochs)
    kept = ProducerSnapshots(disk, directory, snapshots)
    transactions = _read_transactions(disk, directory, segments, scanned, names)
    return LoadedLog(segments, epochs, kept, scanned.recent, durable_end, transactions)


def _read_transactions(
    disk: Disk, directory: str, segments: Sequence[Segment], scanned: Scanned, names: Sequence[str]
) -> TransactionIndex:
    """Read the aborted transactions of the segments that recovery has not read."""
    index = TransactionIndex(disk, directory)
    if segments[0].base_offset >= scanned.from_offset and not scanned.has_transactions:
        return index  # recovery has read the whole log
    end_offset = segments[-1].index.next_offset
    borders = [*(segment.base_offset for segment in segments), end_offset]
    known = {segment.base_offset for segment in segments}
    named = [int(name[:20]) for name in names if name.endswith(TRANSACTION_SUFFIX)]
    index.read([*pairwise(borders)], known.intersection(named), scanned.from_offset)
    if index.learnt_from == scanned.from_offset and not scanned.has_transactions:
        index.learnt_from = ALL_KNOWN
    return index


def _listed(disk: Disk, directory: str) -> list[str]:
    """Return the names in the directory, creating it or completing interrupted swaps first."""
    try:
        names = disk.listdir(directory)
    except FileNotFoundError:
        disk.mkdir(directory)
        return []
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        complete_swaps(disk, directory)
        names = disk.listdir(directory)
    return names


def _sweep(disk: Disk, directory: str, names: Sequence[str]) -> tuple[list[int], list[int]]:
    """Remove leftovers; return the offsets of the segments, in order, and of the snapshots."""
    doomed = [name for name in names if name.endswith(LEFTOVERS)]
    offsets: dict[str, set[str]] = {"log": set(), "snapshot": set()}  # by file type
    for match in map(SEGMENT_FILE.fullmatch, names):
        if match is not None:
            offsets.setdefault(match[2], set()).add(match[1])
    logs, snapshots = offsets.pop("log"), offsets.pop("snapshot")
    for kind, found in offsets.items():
        doomed += [f"{offset}.{kind}" for offset in found - logs]
    for name in sorted(doomed):
        disk.unlink(f"{directory}/{name}")
    return sorted(map(int, logs)), [*map(int, snapshots)]


def _recover(
    disk: Disk,
    directory: str,
    segments: list[Segment],
    settings: LogSettings,
    known: KnownOfLog,
    *,
    note_read: NoteRead,
) -> Scanned:
    """Check the segments beyond the recovery point; cut at a fault and drop later `segments`.

    Raises DamagedLog, before any change, if the log would then end before `known.end`, or must be
    whole.
    """
    scanned = NOT_SCANNED
    epoch: int = NO_EPOCH
    expected: int | None = None
    for slot, segment in enumerate(segments):
        is_last = slot == len(segments) - 1
        if expected is not None and not _continues(segment.base_offset, expected, settings, known):
            _require_reached(expected, known, f"{segment.path} does not follow", epoch)
            _require_uncut(known, f"{segment.path} does not follow", expected, epoch)
            _logger.warning("%s: offset %d was due next: dropped", segment.path, expected)
            _drop(disk, directory, segments, slot)
            break
        is_below = not is_last and segments[slot + 1].base_offset <= known.recovery_point
        # A segment that was flushed only while it was active has no `.txnindex` yet: check it, and
        # all segments behind it, too, so that the epochs from there on come from the batches.
        is_known = is_below and scanned.from_offset == ALL
        if is_known and SegmentFiles(disk, directory, segment.base_offset).has_indexes:
            try:
                expected = segment.index.next_offset
                segment.release()
                scanned = scanned._replace(recent=None)
                continue
            except BrokenSegment as error:
                _logger.warning("%s is below the recovery point, and yet: %s", segment.path, error)
        scan = segment.check(epoch, note_read, known.scan, newest_epoch=known.newest_epoch)
        epoch, expected = scan.last_epoch, scan.index.next_offset
        scanned = Scanned(
            min(scanned.from_offset, segment.base_offset),
            scanned.epoch_starts + scan.epoch_starts,
            scan.recent if scanned.recent is None else scanned.recent.with_later(scan.recent),
            scanned.has_transactions or scan.recent.has_transactions,
        )
        _require_intact(scan, known, segment.path, is_last=is_last)
        if scan.fault is not None:
            _logger.warning("%s: cut at byte %d: %s", segment.path, scan.index.size, scan.fault)
            if not is_last and segments[slot + 1].base_offset != expected:  # records are lost
                _drop(disk, directory, segments, slot + 1)  # first: a crash must leave no gap
        must_last = known.must_last or not is_last
        if scan.fault is not None or must_last:
            segment.cut_tail(must_last=must_last)
        if slot < len(segments) - 1:
            segment.index.seal()
            segment.write_indexes()
            segment.release()
    if segments and not segments[-1].is_loaded:
        segments[-1].load()
    return scanned


def _require_chain(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    settings: LogSettings,
    known: KnownOfLog,
) -> None:
    """Raise DamagedLog if a segment between two others is missing, unless gaps are allowed."""
    if settings.may_have_gaps or not known.end:
        return
    for hole in holes(disk, directory, [one.base_offset for one in segments], settings):
        if hole.start < known.end and known.start < hole.end:
            where = f"two segments of {directory} do not follow each other"
            raise _lacking(where, hole.start, hole.end)


def _require_reached(
    end_offset: int, known: KnownOfLog, where: str, last_epoch: int = NO_EPOCH
) -> None:
    if end_offset < known.end:
        raise _lacking(where, end_offset, known.end, last_epoch)


def _require_intact(scan: SegmentScan, known: KnownOfLog, path: str, *, is_last: bool) -> None:
    """Raise DamagedLog unless a segment is whole, or may be cut at its fault."""
    if scan.fault is None and not is_last:
        return
    end_offset, epoch = scan.index.next_offset, scan.last_epoch
    where = f"{path}, byte {scan.index.size}: {scan.fault or 'it ends there'}"
    _require_reached(end_offset, known, where, epoch)
    is_torn = is_last and scan.is_torn
    if scan.fault is not None and not (is_torn and known.may_be_torn):
        _require_uncut(known, where, end_offset, epoch)


def _require_uncut(known: KnownOfLog, where: str, end_offset: int, last_epoch: int) -> None:
    if known.must_be_whole:
        message = f"{where}; records behind it cannot be read. The log was not truncated"
        raise DamagedLog(message, end_offset=end_offset, last_epoch=last_epoch)


def _lacking(where: str, start: int, end: int, last_epoch: int = NO_EPOCH) -> DamagedLog:
    message = f"{where}; the log certainly had the records [{start}, {end}), which cannot be read"
    return DamagedLog(
        f"{message}. The log was not truncated", end_offset=start, last_epoch=last_epoch
    )


def _continues(base_offset: int, expected: int, settings: LogSettings, known: KnownOfLog) -> bool:
    """Whether no records are lost between two segments.

    Appends leave no holes, so a hole behind the recovery point is a loss by power failure, in a
    compacted log, too: other replicas must send those records again.
    docs/decisions/0025-log-damage.md
    """
    is_durable = base_offset <= known.recovery_point
    return base_offset == expected or (
        base_offset > expected and settings.may_have_gaps and is_durable
    )


def _drop(disk: Disk, directory: str, segments: list[Segment], keep: int) -> None:
    """Delete all segments but the first `keep`, from the last on, each durably."""
    while len(segments) > keep:
        segments.pop().delete()
        disk.fsync_dir(directory)


def _open_epochs(
    disk: Disk,
    directory: str,
    segments: Sequence[Segment],
    scanned: Scanned,
    known: KnownOfLog,
    *,
    has_file: bool,
) -> LeaderEpochCache:
    """Read the checkpoint; epochs that recovery has read replace it. Rebuild it if damaged or lost.

    Without it every epoch's end would be wrong, and a fetch would carry no epoch: the leader could
    not detect that this log diverges.
    """
    unscanned = [segment for segment in segments if segment.base_offset < scanned.from_offset]
    try:
        epochs = LeaderEpochCache.open(disk, directory, has_file=has_file)
        if epochs.entries or not any(segment.size for segment in unscanned):
            epochs.relearn(scanned.from_offset, scanned.epoch_starts)
            found = None
            if unscanned and not epochs.has_checksum:
                found = contradiction(epochs, unscanned[-1])
                if len(unscanned) < len(segments):
                    unscanned[-1].release()
            if found is None:
                return epochs
            _logger.warning("%s/%s does not fit the log: %s", directory, EPOCH_FILE, found)
        _logger.warning("%s: the leader epochs are lost, and rebuilt from the log", directory)
    except CorruptCheckpoint as error:
        _logger.warning("%s; this is done now", error)
    epochs = LeaderEpochCache.empty(disk, directory)
    for segment in segments:
        epochs.extend(
            (header.leader_epoch, header.base_offset)
            for _, header in segment.headers(segment.base_offset)
            if header.leader_epoch <= known.newest_epoch  # a newer epoch is damage
        )
    return epochs

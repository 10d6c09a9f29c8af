"""Finds holes between the segments of a log, without reading the log, and completes swaps.

The last entry of a full segment's index, and the few batches behind it, show where it ends: as
cheap for a large segment as for a small one.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Final, NamedTuple

from quorumlog.storage.core.aborted_transactions import SUFFIX as TRANSACTION_SUFFIX
from quorumlog.storage.core.log_index import (
    OFFSET_ENTRY_BYTES,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
)
from quorumlog.storage.core.segment_index import SegmentIndex
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.batch_scan import BrokenSegment, extend_index, scan_batches
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.segment_files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOOKUP_SUFFIXES,
    SWAP_SUFFIX,
    segment_path,
)

_logger: Final = logging.getLogger(__name__)


class Hole(NamedTuple):
    """Missing offsets [start, end), before the segment with base offset `end`."""

    start: int
    end: int


def holes(
    disk: Disk, directory: str, base_offsets: Sequence[int], settings: LogSettings
) -> Iterator[Hole]:
    """Yield the holes between segments, in order. Raises OSError.

    Damaged segments are skipped: their readers report the damage.
    """
    for base_offset, next_base_offset in pairwise(base_offsets):
        try:
            end = _end_offset(disk, directory, base_offset, settings)
        except (CorruptIndex, BrokenSegment, FileNotFoundError) as error:
            _logger.info(
                "%s, segment %d: the end offset is unknown: %s", directory, base_offset, error
            )
            continue
        if end < next_base_offset:
            yield Hole(end, next_base_offset)


def _end_offset(disk: Disk, directory: str, base_offset: int, settings: LogSettings) -> int:
    with closing(disk.open(segment_path(directory, base_offset, ".index"))) as file:
        start = max(0, file.size() - OFFSET_ENTRY_BYTES)
        entries = bytes(file.pread(OFFSET_ENTRY_BYTES, start))
    offsets = OffsetIndex.decode(base_offset, entries)
    index = SegmentIndex.resumed(base_offset, settings, offsets, TimeIndex(base_offset))
    path = segment_path(directory, base_offset)
    with closing(disk.open_to_read(path)) as file:
        size = file.size()
        if 0 < size <= index.size:
            raise BrokenSegment(f"{path} ends before byte {index.size}, where a batch was")
        return extend_index(path, index, size, file.pread).next_offset


_SWAP_NAME: Final = re.compile(r"(\d{20})\.log\.swap")
_LOG_NAME: Final = re.compile(r"(\d{20})\.log")


def complete_swaps(disk: Disk, directory: str) -> None:
    """Complete, when a log is opened, the swaps of segments that a crash interrupted, durably.

    A `.log.swap` file is whole and durable: it replaces the offsets of its batches. Source: Kafka's
    `LogLoader.completeSwapOperations`.

    Raises StorageError if such a file holds no whole batch: its segments then stay.
    """
    names = disk.listdir(directory)
    for match in filter(None, map(_SWAP_NAME.fullmatch, names)):
        base_offset = int(match[1])
        end_offset = _end_of(disk, f"{directory}/{match[0]}")
        _logger.warning("%s: offsets [%d, %d) are swapped in", directory, base_offset, end_offset)
        for found in filter(None, map(_LOG_NAME.fullmatch, names)):
            if base_offset <= int(found[1]) < end_offset:
                _set_aside(disk, directory, int(found[1]))
        path = segment_path(directory, base_offset)
        for suffix in LOOKUP_SUFFIXES:  # left if the crash came after the `.log` was renamed
            index_path = segment_path(directory, base_offset, suffix)
            if disk.exists(index_path):
                disk.unlink(index_path)
        # If the old segment had this file, so has the new one, unless it was already renamed.
        transactions_path = segment_path(directory, base_offset, TRANSACTION_SUFFIX)
        if disk.exists(transactions_path + CLEANED_SUFFIX):
            disk.rename(transactions_path + CLEANED_SUFFIX, transactions_path)
        disk.rename(path + SWAP_SUFFIX, path)
        disk.fsync_dir(directory)


def _set_aside(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in (".log", *INDEX_SUFFIXES):
        path = segment_path(directory, base_offset, suffix)
        if disk.exists(path):
            disk.rename(path, path + DELETED_SUFFIX)


def _end_of(disk: Disk, path: str) -> int:
    with closing(disk.open(path)) as file:
        end_offset = None
        for _, header in scan_batches(path, 0, file.size(), file.pread):
            end_offset = header.next_offset
    if end_offset is None:
        raise StorageError(f"{path} holds no batch: remove it if the log is whole without it")
    return end_offset

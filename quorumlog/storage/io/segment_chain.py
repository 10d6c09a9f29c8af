"""Finds holes between the segments of a log, without reading the log.

The last entry of a full segment's index, and the few batches behind it, show where it ends: as
cheap for a large segment as for a small one.
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from quorumlog.storage.core.log_index import (
    OFFSET_ENTRY_BYTES,
    CorruptIndex,
    OffsetIndex,
    TimeIndex,
)
from quorumlog.storage.core.segment_index import SegmentIndex
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.batch_scan import BrokenSegment, extend_index
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.segment_files import segment_path

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
    entries = _last_entry(disk, segment_path(directory, base_offset, ".index"))
    offsets = OffsetIndex.decode(base_offset, entries)
    index = SegmentIndex.resumed(base_offset, settings, offsets, TimeIndex(base_offset))
    path = segment_path(directory, base_offset)
    file = disk.open_to_read(path)
    try:
        size = file.size()
        if 0 < size <= index.size:
            raise BrokenSegment(f"{path} ends before byte {index.size}, where a batch was")
        return extend_index(path, index, size, file.pread).next_offset
    finally:
        file.close()


def _last_entry(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return bytes(file.pread(OFFSET_ENTRY_BYTES, max(0, file.size() - OFFSET_ENTRY_BYTES)))
    finally:
        file.close()

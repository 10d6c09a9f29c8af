"""The input of retention: size and newest timestamp of each segment of a log."""

from contextlib import suppress
from typing import Final

from quorumlog.storage.core.retention import SegmentFacts
from quorumlog.storage.core.segment_index import NO_TIMESTAMP
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList


class SegmentSurvey:
    """Survey of one log. Another thread may use it, but not while the log is cut or closed."""

    def __init__(self, disk: Disk, segments: SegmentList) -> None:
        self._disk: Final = disk
        self._segments: Final = segments

    def facts(self) -> list[SegmentFacts]:
        """Return the facts of all living segments, oldest first. Raises OSError.

        It may read an index of each segment, once: the log remembers the largest timestamp. The
        list is empty if the cleaner swaps segments meanwhile, as it might have a gap, and before
        the log has its first file.
        """
        swaps = self._segments.swaps
        found = []
        for segment in tuple(self._segments):
            try:
                found.append(self._facts_of(segment))
            except FileNotFoundError:
                if segment.base_offset >= self._segments.first_base_offset:
                    return []  # its name is missing during a swap
                # else this segment and all older ones are dead by now
        return found if self._segments.swaps == swaps else []

    def first_timestamp_from(self, offset: int) -> int:
        """Return the time of the first batch of the segment with `offset`. Raises OSError.

        It reads only that batch's header. -1: the segment is gone, or has no timestamp.
        """
        for segment in self._segments.all_from(offset)[:1]:
            copy = segment.copy()
            try:
                with suppress(FileNotFoundError):
                    for _, header in copy.headers(copy.base_offset):
                        return header.max_timestamp
            finally:
                copy.release()
        return NO_TIMESTAMP

    def _facts_of(self, segment: Segment) -> SegmentFacts:
        index = segment.known_index
        if index is not None:
            newest_ms, size = index.max_timestamp, index.size
        elif size := segment.size:
            newest_ms = self._newest_ms(segment)
        else:
            newest_ms = NO_TIMESTAMP
        if newest_ms <= NO_TIMESTAMP:
            newest_ms = self._disk.modified_ms(segment.path)
        return SegmentFacts(segment.base_offset, size, newest_ms)

    def _newest_ms(self, segment: Segment) -> int:
        known = self._segments.max_timestamps
        newest_ms = known.get(segment.base_offset)
        if newest_ms is None:
            copy = segment.copy()
            newest_ms = known[segment.base_offset] = copy.index.max_timestamp
            copy.release()  # there may be many indexes of megabytes
        return newest_ms

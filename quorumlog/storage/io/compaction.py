"""The replacement of a log's segments by segments that were cleaned beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from quorumlog.storage.core.cleaning import CleaningRules
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.cleaning import CleanedSegment, Cleaning
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList


@dataclass(eq=False)
class Compaction:
    """Compaction of the log in `directory`. Its thread calls all methods but `remove_replaced`."""

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
        with self._health.changing("remove replaced segments"):
            self._disk.fsync_dir(self._directory)  # first: a crash must find the old or the new
            self._segments.unlink(names)

"""How a log takes over segments that were cleaned beside it."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.storage.core.cleaning import CleaningRules
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.cleaning import CleanedSegment, Cleaning
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList


class Compaction:
    """Of the log in `directory`. The log's own thread calls all but `remove_replaced`."""

    new_pass: ClassVar[type[Cleaning]] = Cleaning

    def __init__(
        self, disk: Disk, directory: str, segments: SegmentList, health: LogHealth
    ) -> None:
        self._disk: Final = disk
        self._directory: Final = directory
        self._segments: Final = segments
        self._health: Final = health

    @property
    def cuts(self) -> int:
        """How often records were taken from the end of the log."""
        return self._segments.cuts

    @property
    def swaps(self) -> int:
        """How often a cleaned segment has replaced others, whose files are gone."""
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
        """Let the log read a cleaned segment instead of those that it replaces.

        Waits for no disk. Returns names for `remove_replaced`; None if the log was cut, or starts
        later, since: then nothing is changed. No other thread may survey the log meanwhile. Raises
        StorageError, after which the log is of no more use: the next start completes what was
        begun.
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
        """Remove the files that `swap_in` has named. Raises StorageError."""
        with self._health.changing("remove replaced segments"):
            self._disk.fsync_dir(self._directory)  # first: a crash must find the old or the new
            self._segments.unlink(names)

"""Retention by age and size: the new start of a log.

Only whole segments are removed, oldest first, and only below the high watermark. Source: Kafka's
`UnifiedLog.deleteOldSegments`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

from quorumlog.advances import Advance
from quorumlog.settings.topics import TopicConfig

UNLIMITED: Final = -1


def aged_ms(newest_ms: int, written_ms: int, advances: Sequence[Advance]) -> int:
    """Return the time of a segment's newest record by the advanced clock.

    Only the advances after the last write make a segment older. Clients' clocks are not advanced,
    so without this rule a record written after an advance by a week would be a week old at once.
    written_ms: the time of the file, by the machine's clock. A timestamp behind it is of an
    advanced clock already, or from the future: then the time of the file counts.
    """
    ahead_ms = sum(by_ms for at_ms, by_ms in advances if at_ms <= written_ms)
    return min(newest_ms, written_ms) + ahead_ms if ahead_ms else newest_ms


class SegmentFacts(NamedTuple):
    """One segment. `newest_ms`: the largest timestamp of its records, or the time of its file."""

    base_offset: int
    size: int
    newest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """Maximum bytes and age of a log's segments; UNLIMITED: no limit."""

    max_bytes: int = UNLIMITED
    max_age_ms: int = UNLIMITED

    @property
    def keep_everything(self) -> bool:
        """Whether neither limit is set."""
        return self.max_bytes < 0 and self.max_age_ms < 0


EVERYTHING: Final = RetentionLimits()


def retention_limits(config: TopicConfig) -> RetentionLimits:
    """Return the limits of a topic. Without `delete` in cleanup.policy there are none."""
    if "delete" not in config.policies:
        return EVERYTHING
    return RetentionLimits(max_bytes=config.retention_bytes, max_age_ms=config.retention_ms)


class Retention:
    """Decides which segments of a log are removed. A mutant replaces one of the rules."""

    def start_after(
        self,
        segments: Sequence[SegmentFacts],
        limits: RetentionLimits,
        *,
        high_watermark: int,
        log_end_offset: int,
        wall_ms: int,
    ) -> int:
        """Return the start offset of the log without its expired and surplus segments.

        `segments`: all segments, oldest first; the last is the active segment, [base_offset,
        log_end_offset). The result is the base offset of a segment (of the first one if all stay),
        or log_end_offset: then the active segment is removed, too, and must be rolled first.
        """
        surplus = sum(segment.size for segment in segments) - limits.max_bytes
        start = segments[0].base_offset
        for segment, following in zip_longest(segments, segments[1:]):
            end = log_end_offset if following is None else following.base_offset
            is_empty = following is None and not segment.size
            if is_empty or not self.is_committed(end, high_watermark):
                break
            is_surplus = limits.max_bytes >= 0 and surplus >= segment.size
            if not is_surplus and not self.has_expired(segment, limits, wall_ms):
                break
            surplus -= segment.size
            start = end
        return start

    def is_committed(self, end: int, high_watermark: int) -> bool:
        """Whether every record below `end` is committed; uncommitted records must stay."""
        return end <= high_watermark

    def has_expired(self, segment: SegmentFacts, limits: RetentionLimits, wall_ms: int) -> bool:
        """Whether even the newest record is too old. A future timestamp keeps its segment."""
        return limits.max_age_ms >= 0 and wall_ms - segment.newest_ms > limits.max_age_ms

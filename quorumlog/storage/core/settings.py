"""Settings of segments, indexes and flushes. Names, units and defaults as in Kafka's topics."""

from dataclasses import dataclass
from typing import Final
from zlib import crc32

from quorumlog.settings import kinds
from quorumlog.settings.kinds import ConfigType
from quorumlog.settings.servers import behind
from quorumlog.settings.topics import TopicConfig

INT32_MAX: Final = 2**31 - 1  # positions and relative offsets are 4 bytes in the index files


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings of one log. Raises ValueError for values that the file formats cannot hold."""

    # DEVIATION: Kafka's minimum is 1 MiB. A test of many segments sets less for its whole node.
    # docs/decisions/0040-accepted-without-effect.md
    segment_bytes: int = behind(
        TopicConfig.segment_bytes, kinds.whole(ConfigType.INT, 1, INT32_MAX)
    )
    segment_ms: int = behind(TopicConfig.segment_ms)
    segment_jitter_ms: int = behind(TopicConfig.segment_jitter_ms)
    segment_index_bytes: int = behind(TopicConfig.segment_index_bytes)
    index_interval_bytes: int = behind(TopicConfig.index_interval_bytes)
    cleanup_policy: str = behind(TopicConfig.cleanup_policy)
    flush_messages: int = behind(TopicConfig.flush_messages)
    flush_ms: int = behind(TopicConfig.flush_ms)

    def __post_init__(self) -> None:
        if not 1 <= self.segment_bytes <= INT32_MAX:
            raise ValueError(f"segment.bytes must be in [1, {INT32_MAX}]: {self.segment_bytes}")
        if self.segment_ms < 1:
            raise ValueError(f"segment.ms must be positive: {self.segment_ms}")
        if self.segment_index_bytes < 12:
            raise ValueError(f"segment.index.bytes holds no entry: {self.segment_index_bytes}")
        if self.index_interval_bytes < 0:
            raise ValueError(f"index.interval.bytes is negative: {self.index_interval_bytes}")

    def segment_ms_of(self, path: str) -> int:
        """Return the maximum age of the segment at `path`: segment.ms, less a drawn jitter.

        The draw is a hash of the path, so that a restart does not change it, and a simulation
        repeats it. Kafka's `LogConfig.randomSegmentJitter` draws by chance, for each process anew.
        """
        most = min(self.segment_jitter_ms, self.segment_ms)
        return self.segment_ms - crc32(path.encode()) % most if most else self.segment_ms

    @property
    def is_flushed_by_itself(self) -> bool:
        """Whether flush.messages or flush.ms is set; nearly never."""
        return self.flush_messages < kinds.LONG_MAX or self.flush_ms < kinds.LONG_MAX

    @property
    def may_have_gaps(self) -> bool:
        """Whether offsets may be missing between batches: only in compacted logs."""
        return "compact" in self.cleanup_policy

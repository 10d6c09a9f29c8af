"""Lookups by time: the only place where storage decodes records. Source: KIP-79, KIP-734.

Batches are not trusted: their records may be garbage, or decompress from a few bytes to gigabytes.
Such a batch is looked up by its header alone.
"""

from typing import Final, TypeAlias

from quorumlog.storage.core.segment_index import NO_TIMESTAMP
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.records import BatchHeader, decode_batch, validate_batch

# DEVIATION: Kafka decodes every batch, without a limit.
# docs/decisions/0020-disk-threads.md
RECORDS_MAX: Final = 100_000  # in one batch: a tenth of a second
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024

Found: TypeAlias = tuple[Offset, int]
"""(offset, timestamp) of a record; of a batch's first offset if its records cannot be read."""


class TimeLookup:
    """Finds records of one log by timestamp, from log_start_offset to the end at its creation.

    The log's own thread creates it; another may use it, once, while the log is appended to, read
    and flushed, but not while it is cut or closed. FileNotFoundError may mean that the log start
    has advanced meanwhile, or that the cleaner has swapped a segment: `has_old_names`. Raises
    CorruptBatch (a checksum), StorageError, OSError.
    """

    def __init__(self, segments: SegmentList, log_start_offset: Offset) -> None:
        self.log_start_offset: Final = log_start_offset
        self._copies: Final = [one.copy() for one in segments.all_from(log_start_offset)]
        self._max_timestamps: Final = segments.max_timestamps
        self._segments: Final = segments
        self._swaps: Final = segments.swaps

    @property
    def has_old_names(self) -> bool:
        """Whether the cleaner has swapped segments since: their files may be gone."""
        return self._segments.swaps != self._swaps

    def first_since(self, timestamp_ms: int) -> Found | None:
        """Find the first record with a timestamp >= timestamp_ms."""
        try:
            for copy in self._copies:
                if self._max_timestamp(copy) >= timestamp_ms:
                    found = _find_in(copy, timestamp_ms, self.log_start_offset)
                    if found is not None:
                        return found
            return None
        finally:
            for copy in self._copies:
                copy.release()

    def of_max_timestamp(self) -> Found | None:
        """Find the first record with the largest timestamp."""
        return self.first_since(max(map(self._largest_in, self._copies)))

    def _largest_in(self, segment: Segment) -> int:
        if segment.base_offset >= self.log_start_offset:
            return self._max_timestamp(segment)
        headers = segment.headers(self.log_start_offset)  # the index counts deleted records, too
        return max((header.max_timestamp for _, header in headers), default=NO_TIMESTAMP)

    def _max_timestamp(self, segment: Segment) -> int:
        """Return the largest timestamp; the index of a full segment is loaded only once."""
        if segment.is_loaded:
            return segment.index.max_timestamp
        known = self._max_timestamps.get(segment.base_offset)
        if known is None:
            known = self._max_timestamps[segment.base_offset] = segment.index.max_timestamp
            segment.release()  # there may be many indexes of megabytes
        return known


def _find_in(segment: Segment, timestamp_ms: int, log_start_offset: int) -> Found | None:
    for position, header in segment.headers_since(timestamp_ms, log_start_offset):
        if header.max_timestamp < timestamp_ms:
            continue
        batch = segment.read_bytes(position, position + header.size_in_bytes)
        found = _first_since(batch, header, timestamp_ms, log_start_offset)
        if found is not None:
            return found
    return None


def _first_since(
    batch: bytes, header: BatchHeader, timestamp_ms: int, log_start_offset: int
) -> Found | None:
    """Find the record, or the batch's first offset if its records cannot be read."""
    validate_batch(batch, 0, header)
    as_one = Offset(max(header.base_offset, log_start_offset)), header.max_timestamp
    if header.record_count > RECORDS_MAX:
        return as_one
    try:
        records = decode_batch(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    except CorruptBatch:
        return as_one
    for record in records:
        if record.timestamp_ms >= timestamp_ms and record.offset >= log_start_offset:
            return Offset(record.offset), record.timestamp_ms
    return None

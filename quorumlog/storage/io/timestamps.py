"""Lookups by time: the only place where storage decodes records. Source: KIP-79, KIP-734.

Storage does not know where a batch comes from: its records may be garbage, or unfold from a few
bytes to gigabytes. Such a batch counts as one piece: by its header alone.
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.storage.io.segment import Segment
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.records import BatchHeader, decode_batch, validate_batch

# DEVIATION: Kafka looks into every batch, as long as it takes.
# docs/decisions/0021-a-lookup-by-time-has-a-limit.md
RECORDS_MAX: Final = 100_000  # in one batch: a tenth of a second
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024


def find_first_since(
    segments: Iterable[Segment], timestamp_ms: int, log_start_offset: int
) -> tuple[Offset, int] | None:
    """Find the first record with a timestamp >= timestamp_ms: (offset, its timestamp); or None."""
    for segment in segments:
        if segment.max_timestamp >= timestamp_ms:
            found = _find_in(segment, timestamp_ms, log_start_offset)
            if found is not None:
                return found
    return None


def find_latest(segments: Iterable[Segment], log_start_offset: int) -> tuple[Offset, int] | None:
    """Find the first record with the largest timestamp: (offset, its timestamp); or None."""
    best: tuple[int, Segment] | None = None
    for segment in segments:
        latest = _latest_of(segment, log_start_offset)
        if latest is not None and (best is None or latest > best[0]):
            best = latest, segment
    if best is None:
        return None
    timestamp_ms, segment = best
    return _find_in(segment, timestamp_ms, log_start_offset)


def _latest_of(segment: Segment, log_start_offset: int) -> int | None:
    if segment.base_offset >= log_start_offset:
        return segment.max_timestamp if segment.size else None
    headers = segment.headers(log_start_offset)  # the index counts what may not be read, too
    return max((header.max_timestamp for _, header in headers), default=None)


def _find_in(
    segment: Segment, timestamp_ms: int, log_start_offset: int
) -> tuple[Offset, int] | None:
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
) -> tuple[Offset, int] | None:
    """Find the record, or what stands for it if the records cannot be read: the first offset."""
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

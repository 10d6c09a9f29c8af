"""Lookups by time: the only place where storage decodes records. Source: KIP-79, KIP-734."""

from collections.abc import Iterable

from quorumlog.storage.io.segment import Segment
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.records import decode_batch


def find_first_since(
    segments: Iterable[Segment], timestamp_ms: int, log_start_offset: int
) -> tuple[Offset, int] | None:
    """Find the first record with a timestamp >= timestamp_ms: (offset, its timestamp); or None."""
    for segment in segments:
        if segment.index.max_timestamp >= timestamp_ms:
            start = max(log_start_offset, segment.index.times.offset_before(timestamp_ms))
            found = _find_in(segment, start, timestamp_ms, log_start_offset)
            if found is not None:
                return found
    return None


def find_latest(segments: Iterable[Segment], log_start_offset: int) -> tuple[Offset, int] | None:
    """Find the first record with the largest timestamp: (offset, its timestamp); or None."""
    best: tuple[int, Segment] | None = None
    for segment in segments:
        if segment.size and (best is None or segment.index.max_timestamp > best[0]):
            best = segment.index.max_timestamp, segment
    if best is None:
        return None
    timestamp_ms, segment = best
    start = max(log_start_offset, segment.index.offset_of_max_timestamp)
    return _find_in(segment, start, timestamp_ms, log_start_offset)


def _find_in(
    segment: Segment, start: int, timestamp_ms: int, log_start_offset: int
) -> tuple[Offset, int] | None:
    for position, header in segment.headers(start):
        if header.max_timestamp < timestamp_ms:
            continue
        batch = segment.read_bytes(position, position + header.size_in_bytes)
        for record in decode_batch(batch):
            if record.timestamp_ms >= timestamp_ms and record.offset >= log_start_offset:
                return Offset(record.offset), record.timestamp_ms
    return None

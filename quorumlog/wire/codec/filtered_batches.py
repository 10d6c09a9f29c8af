"""Batches without some of their records, as compaction writes them.

A batch keeps its offsets, its producer's numbers and its compression. A record keeps its bytes,
unless the batch gets a delete horizon: time deltas then count from the horizon (KIP-534).
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quorumlog.wire.codec.compression import compress
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import COMPRESSION_MASK, MAGIC, BatchHeader, read_varint, sealed
from quorumlog.wire.codec.varint import encode_uvarint

DELETE_HORIZON_BIT: Final = 0x40  # set: base_timestamp is the time when tombstones may go


class RawRecord(NamedTuple):
    """One encoded record: bytes [start, end) of the records; its time delta ends at `rest`."""

    start: int
    rest: int
    end: int
    offset_delta: int
    time_delta: int
    key: bytes | None
    is_tombstone: bool


def raw_records(data: Buffer, header: BatchHeader) -> Iterator[RawRecord]:
    """Yield the records of a batch, without their values and headers. Raises CorruptBatch."""
    position = 0
    try:
        for _ in range(header.record_count):
            start = position
            size, position = read_varint(data, position)
            end = position + size
            time_delta, rest = read_varint(data, position + 1)
            offset_delta, at = read_varint(data, rest)
            key_size, at = read_varint(data, at)
            key = bytes(data[at : at + key_size]) if key_size >= 0 else None
            value_size, at = read_varint(data, at + max(0, key_size))
            if not at <= end <= len(data) or at + max(0, value_size) > end:
                raise CorruptBatch(f"a record of {size} bytes at byte {start}")
            yield RawRecord(start, rest, end, offset_delta, time_delta, key, value_size < 0)
            position = end
    except IndexError as error:
        raise CorruptBatch("the records end too early") from error


def with_records(
    header: BatchHeader, data: Buffer, records: Sequence[RawRecord], *, horizon_ms: int | None
) -> bytes:
    """Return the batch with these records alone; `data`: the argument of `raw_records`.

    horizon_ms: the new delete horizon of the batch; None: unchanged.
    """
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if horizon_ms is None:
        body = b"".join([data[one.start : one.end] for one in records])
    else:
        attributes |= DELETE_HORIZON_BIT
        moved_by = base_timestamp - horizon_ms
        base_timestamp = horizon_ms
        body = b"".join([_moved(data, one, moved_by) for one in records])
    max_timestamp = header.max_timestamp
    if records and not header.has_log_append_time:
        max_timestamp = header.base_timestamp + max([one.time_delta for one in records])
    if not records:
        attributes &= ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
        base_timestamp = max_timestamp
    changed = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(records),
    )
    return _encode(changed, compress(changed.compression, body))


def empty_batch(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """Return a batch without records and producer that covers these offsets."""
    header = BatchHeader(
        base_offset, 0, leader_epoch, MAGIC, 0, 0, last_offset - base_offset, -1, -1, -1, -1, -1, 0
    )
    return _encode(header, b"")


def _encode(header: BatchHeader, body: bytes) -> bytes:
    return sealed(header.base_offset, header.leader_epoch, header[5:], body)


def _moved(data: Buffer, record: RawRecord, moved_by: int) -> bytes:
    """Return the record with its time delta changed by `moved_by`."""
    rest = data[record.rest : record.end]
    time = record.time_delta + moved_by
    body = b"".join((b"\0", encode_uvarint(time << 1 if time >= 0 else (-time << 1) - 1), rest))
    return encode_uvarint(len(body) << 1) + body

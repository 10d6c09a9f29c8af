"""Record batches as Arrow tables, and columns as records; needs numpy and pyarrow.

Only the chain of record lengths is followed in Python. Numpy reads the other numbers of all records
at once, and Arrow copies keys and values. Bytes that are unusual in any way (a number of ten bytes,
a length that does not fit) go to the decoder of single records, which reads or refuses them.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.native import lane
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import (
    BatchHeader,
    Fields,
    decode_body,
    decode_headers,
    read_varint,
)

HEADERS: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
    ]
)
"""The columns of a table of records: the fields of ConsumerRecord after topic and partition."""

_PADDING: Final = bytes(16)  # a number that the end cuts off is read into it
_NUMBER_BYTES_MAX: Final = 9  # such a number fits int64
_DATA_BYTES_MAX: Final = 2**31 - 1  # Arrow's offsets
_SUMMAND_MAX: Final = 2**62 - 1  # two of them fit int64

_Ints = npt.NDArray[np.int64]
_Header = tuple[str, bytes | None]
_Fields = tuple[_Ints, _Ints, _Ints, _Ints, _Ints, _Ints, _Ints, list[_Header]]


class _Unusual(Exception):
    """The bytes are for the decoder of single records."""


def table_of(batches: Sequence[tuple[BatchHeader, bytes]], first_offset: int) -> pa.Table:
    """Return the records from `first_offset` on of decompressed batches, in order.

    Raises CorruptBatch.
    """
    try:
        return _table_at_once(batches, first_offset)
    except _Unusual:
        return concatenated([_table_one_by_one(*batch, first_offset) for batch in batches])


def concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Return all rows of tables of records; without copies."""
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()


def _table_at_once(batches: Sequence[tuple[BatchHeader, bytes]], first_offset: int) -> pa.Table:
    if not batches:
        return SCHEMA.empty_table()
    data = b"".join([body for _, body in batches])
    if len(data) > _DATA_BYTES_MAX:
        raise _Unusual
    counts = [header.record_count for header, _ in batches]
    found = _fields_by_lane(batches, data, sum(counts)) or _fields(batches, data)
    offset, timestamp, key, key_size, value, value_size, header_counts, headers = found

    def repeated(values: list[int]) -> _Ints:
        return np.repeat(np.array(values, np.int64), counts)

    columns = [
        pa.array(offset),
        pa.array(timestamp),
        _contents(data, key, key_size),
        _contents(data, value, value_size),
        _headers(header_counts, headers),
        pa.array(repeated([header.leader_epoch for header, _ in batches]).astype(np.int32)),
        pa.array(repeated([header.has_log_append_time for header, _ in batches]).astype(np.int8)),
    ]
    table = pa.Table.from_arrays(columns, schema=SCHEMA)
    is_read = offset >= first_offset
    return table if is_read.all() else table.filter(pa.array(is_read))


def _fields_by_lane(
    batches: Sequence[tuple[BatchHeader, bytes]], data: bytes, rows: int
) -> _Fields | None:
    """Return the fields of all records as `_fields` does; None: it must read them."""
    if lane.functions is None:
        return None
    found = lane.functions.decode_columns(data, list(batches), rows)
    if found is None:
        return None
    columns = np.frombuffer(found[0], np.int64).reshape(8, rows)
    return (*columns[:7], found[1])


def _fields(batches: Sequence[tuple[BatchHeader, bytes]], data: bytes) -> _Fields:
    """Return offsets, times, positions and sizes of keys and of values, and the headers."""
    places = _places(batches, data)
    buffer = np.frombuffer(data + _PADDING, np.uint8)
    record_size, starts = _numbers(buffer, places, np.full(len(places), len(data)))
    if (record_size < 0).any():
        raise _Unusual
    ends = starts + record_size
    time_delta, p = _numbers(buffer, starts + 1, ends)  # after a byte of attributes
    offset_delta, p = _numbers(buffer, p, ends)
    key_size, key = _numbers(buffer, p, ends)
    value_size, value = _numbers(buffer, _after(key, key_size, ends), ends)
    tail = _after(value, value_size, ends)
    bases = [abs(base) for one, _ in batches for base in (one.base_offset, one.base_timestamp)]
    deltas = [int(np.abs(one).max(initial=0)) for one in (time_delta, offset_delta)]
    if max(*bases, *deltas) > _SUMMAND_MAX:
        raise _Unusual
    kept = [
        (header.base_offset, header.last_offset, header.max_timestamp, 0)
        if header.has_log_append_time
        else (header.base_offset, header.last_offset, header.base_timestamp, 1)
        for header, _ in batches
    ]
    counts = [header.record_count for header, _ in batches]
    base_offset, last, base_time, is_created = np.repeat(np.array(kept, np.int64), counts, axis=0).T
    offset = base_offset + offset_delta
    if (offset_delta < 0).any() or (offset > last).any() or (np.diff(offset) <= 0).any():
        raise _Unusual
    times = base_time + is_created * time_delta
    sizes = (key, key_size, value, value_size)
    return offset, times, *sizes, *_headers_at(data, buffer, tail, ends)


def _places(batches: Sequence[tuple[BatchHeader, bytes]], data: bytes) -> _Ints:
    """Return where each record begins, at its length."""
    places: list[int] = []
    append, p, batch_end = places.append, 0, 0
    try:
        for header, body in batches:
            batch_end += len(body)
            for _ in range(header.record_count):
                append(p)
                size = data[p]  # zigzag encoded
                if size < 0x80:
                    p += 1 + (size >> 1)
                elif data[p + 1] < 0x80:
                    p += 2 + (size + (data[p + 1] - 1 << 7) >> 1)
                else:
                    size, p = read_varint(data, p)
                    p += size
            if p != batch_end:
                raise _Unusual
    except (IndexError, CorruptBatch) as error:
        raise _Unusual from error
    return np.array(places, np.int64)


def _numbers(buffer: npt.NDArray[np.uint8], at: _Ints, ends: _Ints) -> tuple[_Ints, _Ints]:
    """Return the zigzag numbers at these positions, and the positions after them."""
    byte = buffer[at]
    value, p = (byte & 0x7F).astype(np.int64), at + 1
    more = np.flatnonzero(byte >= 0x80)
    for length in range(1, _NUMBER_BYTES_MAX + 1):
        if not more.size:
            break
        if length == _NUMBER_BYTES_MAX:
            raise _Unusual
        byte = buffer[p[more]]
        value[more] |= (byte & 0x7F).astype(np.int64) << 7 * length
        p[more] += 1
        more = more[byte >= 0x80]
    if (p > ends).any():
        raise _Unusual
    return value >> 1 ^ -(value & 1), p


def _after(start: _Ints, size: _Ints, ends: _Ints) -> _Ints:
    """Return the positions after contents of these sizes; a negative size is null."""
    if (size >= ends - start).any():  # the number of headers follows
        raise _Unusual
    return start + np.maximum(size, 0)


def _contents(data: bytes, start: _Ints, size: _Ints) -> pa.Array:
    """Return the contents at these positions: of an array of them and the gaps between them."""
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[::2], bounds[1::2] = start, start + np.maximum(size, 0)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=size < 0))


def _headers_at(
    data: bytes, buffer: npt.NDArray[np.uint8], tail: _Ints, ends: _Ints
) -> tuple[_Ints, list[_Header]]:
    """Return the number of headers of each record, and all headers."""
    has_some = buffer[tail] != 0
    if (~has_some & (tail + 1 != ends)).any():
        raise _Unusual
    counts = np.zeros(len(tail), np.int64)
    found: list[_Header] = []
    for index in np.flatnonzero(has_some).tolist():
        try:
            headers, end = decode_headers(data, int(tail[index]))
        except (IndexError, UnicodeDecodeError, CorruptBatch) as error:
            raise _Unusual from error
        if end != ends[index]:
            raise _Unusual
        counts[index] = len(headers)
        found += headers
    return counts, found


def _headers(counts: _Ints, found: list[_Header]) -> pa.Array:
    keys = pa.array([key for key, _ in found], pa.string())
    values = pa.array([value for _, value in found], pa.binary())
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS)


def _table_one_by_one(header: BatchHeader, body: bytes, first_offset: int) -> pa.Table:
    records: list[Fields] = [one for one in decode_body(body, header) if one[0] >= first_offset]
    epoch, kind = header.leader_epoch, int(header.has_log_append_time)
    rows: list[dict[str, Any]] = [
        {
            "offset": offset,
            "timestamp_ms": timestamp_ms,
            "key": key,
            "value": value,
            "headers": [{"key": name, "value": content} for name, content in headers],
            "leader_epoch": epoch,
            "timestamp_type": kind,
        }
        for offset, timestamp_ms, key, value, headers in records
    ]
    try:
        return pa.Table.from_pylist(rows, schema=SCHEMA)
    except OverflowError as error:
        raise CorruptBatch(f"offset {header.base_offset}: a number is no int64") from error

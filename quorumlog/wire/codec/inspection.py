"""The broker's check of the records of a batch, in one pass that creates no object per record.

`unfold` returns the bytes of the records. `inspect_records` checks them against the header, and
returns the facts that the header and a topic's limits are compared with. Stricter than the decoder
of a consumer (`records.decode_batch`): every client can read records that pass here.
Sources: the record format of KIP-98; Kafka's `DefaultRecord.readFrom` and `LogValidator`.
"""

# DEVIATION: Kafka accepts other offset deltas, lengths below -1, attributes, and any header key.
# docs/decisions/0038-record-validation.md

from collections.abc import Iterator
from struct import Struct as Packer
from typing import Final, NamedTuple

from crc32c import crc32c

from quorumlog.wire.codec.compression import Compression, compress, decompress
from quorumlog.wire.codec.errors import BatchTooLarge, CorruptBatch
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.record_runs import RUN_MAX, Run, find_run
from quorumlog.wire.codec.records import (
    COMPRESSION_MASK,
    CRC_END,
    HEADER_BYTES,
    RECORD_BYTES_MIN,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    read_header,
    sealed,
)

_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_NULL: Final = 1  # the length -1, zigzag encoded

_CRC: Final = Packer(">I")
_CRC_AT: Final = 17
_ATTRIBUTES: Final = Packer(">h")
_BEHIND_ATTRIBUTES: Final = BatchHeader._fields.index("attributes") + 1
_MAX_TIMESTAMP: Final = Packer(">q")
_MAX_TIMESTAMP_AT: Final = 35


class RecordsSummary(NamedTuple):
    """Totals over the records of a batch. Timestamps in milliseconds, as the producer set them."""

    min_timestamp: int
    max_timestamp: int
    has_null_key: bool


_new_summary: Final = tuple.__new__  # half the cost of a call of the class


class RecordFacts(NamedTuple):
    """The facts of one record that a topic's limits apply to."""

    timestamp_ms: int
    has_key: bool


def unfold(batch: Buffer, header: BatchHeader, *, decompressed_bytes_max: int) -> Buffer:
    """Return the records of one whole batch: a view of it, or decompressed bytes.

    Raises CorruptBatch; BatchTooLarge if they decompress to more than `decompressed_bytes_max`.
    """
    body = memoryview(batch)[HEADER_BYTES : header.size_in_bytes]
    if not header.attributes & COMPRESSION_MASK:
        return body
    return decompress(header.compression, body, size_max=decompressed_bytes_max)


def inspect_records(data: Buffer, header: BatchHeader, *, items_max: int) -> RecordsSummary:
    """Check that `data` is exactly the records of `header`, at the offsets 0, 1, 2 and so on.

    Raises CorruptBatch; BatchTooLarge for more than `items_max` records and record headers in all:
    the limit bounds the time of a check.
    """
    count = header.record_count
    if count * RECORD_BYTES_MIN > len(data):
        raise CorruptBatch(f"{count} records in {len(data)} bytes")
    if count > items_max:
        raise BatchTooLarge(f"{count} records in one batch: at most {items_max}")
    try:
        least, most, has_null_key = _look_at_all(memoryview(data), count, items_max - count)
    except IndexError as error:
        raise CorruptBatch("the records end too early") from error
    except UnicodeDecodeError as error:
        raise CorruptBatch("the key of a header is no UTF-8") from error
    min_timestamp = header.base_timestamp + least
    max_timestamp = header.base_timestamp + most
    if min_timestamp < _INT64_MIN or max_timestamp > _INT64_MAX:
        raise CorruptBatch("the timestamp of a record does not fit 64 bits")
    return _new_summary(RecordsSummary, (min_timestamp, max_timestamp, has_null_key))


def _look_at_all(data: memoryview, count: int, headers_left: int) -> tuple[int, int, bool]:
    """Return (least timestamp delta, largest, whether a key is null) of `count` > 0 records.

    Raises CorruptBatch, IndexError, UnicodeDecodeError.
    """
    index, p, least, most, has_null_key = 0, 0, _INT64_MAX, _INT64_MIN, False
    while index < count:
        length = min(count - index, RUN_MAX - index % RUN_MAX)
        run = find_run(data, p, index, length) if length > 1 else None
        if run is None:  # walk enough records to make the search's cost negligible
            run, headers_left = _walk(data, p, index, length, headers_left)
        length, p, earliest, latest, is_null = run
        index += length
        least = earliest if earliest < least else least  # `min` costs a call
        most = latest if latest > most else most
        has_null_key = has_null_key or is_null
    if p != len(data):
        raise CorruptBatch(f"{len(data) - p} bytes after the last record")
    return least, most, has_null_key


def _walk(  # noqa: C901, PLR0912, PLR0915 - the hot loop: a call for each number would double its time
    data: memoryview, p: int, index: int, length: int, headers_left: int
) -> tuple[Run, int]:
    """Check `length` records from record `index` on, at `p`; return their run and `headers_left`.

    A number is a zigzag varint, nearly always of one or two bytes. It stays encoded where possible:
    an odd number is negative, 1 is -1. Raises CorruptBatch, IndexError, UnicodeDecodeError.
    """
    varint = _read_varint
    least, most, seen, has_null_key = _INT64_MAX, _INT64_MIN, -1, False
    for expected in range(2 * index, 2 * (index + length), 2):  # an encoded offset delta
        size = data[p]
        p += 1
        if size >= 0x80:
            byte = data[p]
            size, p = (size + (byte - 1 << 7), p + 1) if byte < 0x80 else varint(data, p - 1, 5)
        start = p
        time = data[p + 1]  # behind a byte of attributes
        p += 2
        if time >= 0x80:
            byte = data[p]
            time, p = (time + (byte - 1 << 7), p + 1) if byte < 0x80 else varint(data, p - 1, 10)
        if time != seen:
            seen = time
            delta = time >> 1 ^ -(time & 1)
            least, most = min(least, delta), max(most, delta)
        offset = data[p]
        p += 1
        if offset >= 0x80:
            byte = data[p]
            offset, p = (offset + (byte - 1 << 7), p + 1) if byte < 0x80 else varint(data, p - 1, 5)
        key = data[p]
        p += 1
        if key >= 0x80:
            key, p = varint(data, p - 1, 5)
        if key == _NULL:
            has_null_key = True
        elif key & 1:
            raise CorruptBatch(f"record {expected >> 1} has a key of negative length")
        else:
            p += key >> 1
        value = data[p]
        p += 1
        if value >= 0x80:
            byte = data[p]
            value, p = (value + (byte - 1 << 7), p + 1) if byte < 0x80 else varint(data, p - 1, 5)
        if value != _NULL:
            if value & 1:
                raise CorruptBatch(f"record {expected >> 1} has a value of negative length")
            p += value >> 1
        if data[p]:
            p, headers_left = _skip_headers(data, p, headers_left)
        else:
            p += 1
        if (p - start) * 2 != size or offset != expected or data[start]:
            raise _misfit(expected >> 1, data[start], offset == expected)
    return (length, p, least, most, has_null_key), headers_left


def _misfit(index: int, attributes: int, is_in_turn: bool) -> CorruptBatch:
    if attributes:  # none are defined yet; aiokafka fails on some values
        return CorruptBatch(f"record {index} has attributes: {attributes}")
    if not is_in_turn:
        return CorruptBatch(f"record {index} has another offset delta")
    return CorruptBatch(f"record {index} does not have its declared length")


def _skip_headers(data: Buffer, p: int, headers_left: int) -> tuple[int, int]:
    """Return (the position after the headers that start at `p`, how many more may come)."""
    count, p = (data[p], p + 1) if data[p] < 0x80 else _read_varint(data, p, 5)
    if count & 1:
        raise CorruptBatch("a negative number of headers")
    if count > len(data) - p:  # a header takes two bytes, and `count` is twice their number
        raise CorruptBatch(f"{count >> 1} headers in {len(data) - p} bytes")
    headers_left -= count >> 1
    if headers_left < 0:
        raise BatchTooLarge("too many headers of records in one batch")
    for _ in range(count >> 1):
        length = data[p]
        p += 1
        if length >= 0x80:
            length, p = _read_varint(data, p - 1, 5)
        if length & 1:
            raise CorruptBatch("a header without a key")
        end = p + (length >> 1)
        str(data[p:end], "utf-8")  # Java replaces invalid UTF-8, other clients fail on it
        length = data[end]
        p = end + 1
        if length >= 0x80:
            length, p = _read_varint(data, end, 5)
        if not length & 1:
            p += length >> 1
        elif length != _NULL:
            raise CorruptBatch("a header with a value of negative length")
    return p, headers_left


def _read_varint(data: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    """Return (the number, still zigzag encoded; next position).

    `bytes_max` is 5 for an int32, 10 for an int64: longer or larger numbers are corrupt.
    """
    value = shift = 0
    for at in range(position, position + bytes_max):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if bytes_max == 5 else 64):
                break
            return value, at + 1
        shift += 7
    raise CorruptBatch(f"a number that takes more than {bytes_max} bytes, or is too large")


def iterate_facts(data: Buffer, header: BatchHeader) -> Iterator[RecordFacts]:
    """Yield the facts that a topic's limits need. The records have passed `inspect_records`."""
    p, base_timestamp, varint = 0, header.base_timestamp, _read_varint
    for _ in range(header.record_count):
        size, p = (data[p], p + 1) if data[p] < 0x80 else varint(data, p, 5)
        end = p + (size >> 1)
        p += 1  # the attributes
        time, p = (data[p], p + 1) if data[p] < 0x80 else varint(data, p, 10)
        while data[p] >= 0x80:  # the offset delta
            p += 1
        p += 1
        key = data[p] if data[p] < 0x80 else varint(data, p, 5)[0]
        yield RecordFacts(base_timestamp + (time >> 1 ^ -(time & 1)), key != _NULL)
        p = end


def with_max_timestamp(
    batch: Buffer, header: BatchHeader, max_timestamp: int, *, is_append_time: bool = False
) -> tuple[bytearray, BatchHeader]:
    """Return a copy of one batch with this maximum timestamp, and its header.

    With is_append_time all records have this timestamp, otherwise their own. The checksum covers
    the change, so it is computed again.
    """
    attributes = header.attributes & ~TIMESTAMP_TYPE_BIT
    if is_append_time:
        attributes |= TIMESTAMP_TYPE_BIT
    copy = bytearray(batch)
    _ATTRIBUTES.pack_into(copy, CRC_END, attributes)
    _MAX_TIMESTAMP.pack_into(copy, _MAX_TIMESTAMP_AT, max_timestamp)
    crc = crc32c(memoryview(copy)[CRC_END:])
    _CRC.pack_into(copy, _CRC_AT, crc)
    return copy, header._replace(attributes=attributes, max_timestamp=max_timestamp, crc=crc)


def recompressed(
    header: BatchHeader, data: Buffer, compression: Compression, level: int | None
) -> tuple[bytes, BatchHeader]:
    """Return the batch of `header` and its records with another compression, and its header.

    Offsets, timestamps, producer and sequence stay: the records count from the header.
    """
    attributes = header.attributes & ~COMPRESSION_MASK | compression
    body = compress(compression, bytes(data), level)
    fields = attributes, *header[_BEHIND_ATTRIBUTES:]
    batch = sealed(header.base_offset, header.leader_epoch, fields, body)
    return batch, read_header(batch)

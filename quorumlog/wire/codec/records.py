"""Record batches, version 2 (KIP-98): their headers, for brokers; their records, for readers.

A broker decodes only the 61 bytes of a header: it checks the batch, and writes two fields that the
checksum does not cover (base offset, leader epoch). Any bytes decode to records or raise
CorruptBatch.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from struct import Struct as Packer
from typing import Any, Final, NamedTuple, TypeVar

from crc32c import crc32c

from quorumlog.invariants import InvariantViolation, require
from quorumlog.native import lane
from quorumlog.wire.codec.compression import Compression, compress, decompress
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.uniform_records import RUN_MIN, SMALL, Fields, decode_run
from quorumlog.wire.codec.varint import encode_uvarint

__all__ = [
    "HEADER_BYTES", "BatchHeader", "Compression", "CorruptBatch", "Fields", "Record",
    "decode_as", "decode_batch", "decode_batches", "encode_batch", "iterate_headers",
    "read_header", "restamp", "validate_batch", "validate_checksum",
]  # fmt: skip

MAGIC: Final = 2
HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12  # base offset and batch length; the batch length excludes them
CRC_END: Final = 21  # the checksum covers all bytes from here on
RECORD_BYTES_MIN: Final = 7  # seven numbers of one byte
DECOMPRESSED_BYTES_MAX: Final = 256 * 1024 * 1024

TIMESTAMP_TYPE_BIT: Final = 0x08  # set: one timestamp by the broker's clock for all records
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
COMPRESSION_MASK: Final = 0x07

_HEADER: Final = Packer(">qiibIhiqqqhii")
_START: Final = Packer(">qiibI")  # up to the checksum
_CHECKED: Final = Packer(">hiqqqhii")  # after the checksum
_INT64: Final = Packer(">q")
_INT32: Final = Packer(">i")
_TIMESTAMP: Final = itemgetter(1)  # of Fields
_OFFSET_MIN: Final = -(2**63)

RecordT = TypeVar("RecordT", bound=tuple[Any, ...])


class BatchHeader(NamedTuple):
    """The first 61 bytes of a batch.

    Offsets: [base_offset, next_offset). Timestamps in milliseconds.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The offset of the last record; compaction may have removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The base offset of the next batch in a log."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size_in_bytes(self) -> int:
        """The size of the whole batch."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def compression(self) -> Compression:
        """The compression of the records. Raises CorruptBatch for an unknown type."""
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError as error:
            raise CorruptBatch(f"compression type {self.attributes & COMPRESSION_MASK}") from error

    @property
    def has_log_append_time(self) -> bool:
        """Whether all records have the timestamp `max_timestamp`, by the broker's clock."""
        return bool(self.attributes & TIMESTAMP_TYPE_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the records are markers, not data: clients must not show them."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record: wraps to 0 after int32; -1 without a producer."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Record(NamedTuple):
    """One record. Header keys are text, header values bytes or null."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


_new_header: Final = tuple.__new__  # without the check of `_make`: the fields are as many


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at `position`, without any check of the records.

    Raises CorruptBatch if fewer than 61 bytes are left, or the batch's length is less.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(buffer) - position} bytes are no batch header")
    header = _new_header(BatchHeader, _HEADER.unpack_from(buffer, position))
    if header.batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise CorruptBatch(f"batch length {header.batch_length}")
    return header


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch; a partial batch at the end is left out.

    Raises CorruptBatch if a batch's length is smaller than its header.
    """
    position, end, unpack = 0, len(buffer), _HEADER.unpack_from
    while end - position >= HEADER_BYTES:
        fields = unpack(buffer, position)  # as `read_header` does
        size = fields[1] + LOG_OVERHEAD_BYTES
        if size < HEADER_BYTES:
            raise CorruptBatch(f"batch length {fields[1]}")
        if size > end - position:
            return
        yield position, _new_header(BatchHeader, fields)
        position += size


def validate_checksum(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check size, magic and checksum. Raises CorruptBatch."""
    end = position + header.batch_length + LOG_OVERHEAD_BYTES
    if end > len(buffer):
        raise CorruptBatch(
            f"a batch of {header.size_in_bytes} bytes, {len(buffer) - position} left"
        )
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic}")
    if crc32c(memoryview(buffer)[position + CRC_END : end]) != header.crc:
        raise CorruptBatch(f"the checksum of the batch at offset {header.base_offset} differs")


def validate_batch(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Check size, magic, checksum and the other header fields. Raises CorruptBatch.

    `record_count` may be less than the number of offsets: compaction removes records.
    """
    validate_checksum(buffer, position, header)
    record_count = header.record_count
    if not 0 <= record_count <= header.last_offset_delta + 1:
        raise CorruptBatch(f"{record_count} records, last delta {header.last_offset_delta}")
    room = header.batch_length + LOG_OVERHEAD_BYTES - HEADER_BYTES
    # The common case creates no enum: a start after a crash checks every batch.
    is_plain = not header.attributes & COMPRESSION_MASK or header.compression is Compression.NONE
    if is_plain and record_count * RECORD_BYTES_MIN > room:
        raise CorruptBatch(f"{record_count} records in {room} bytes")


def restamp(
    buffer: bytearray | memoryview, position: int, *, base_offset: int, leader_epoch: int
) -> None:
    """Write a leader's stamp at append, in place. The checksum covers neither field."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LOG_OVERHEAD_BYTES, leader_epoch)


def _encode_varint(value: int) -> bytes:
    """Return the zigzag varint: small numbers of either sign take few bytes."""
    return encode_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


SMALL_LIMIT: Final = 4096
SMALL_VARINTS: Final = tuple(_encode_varint(value) for value in range(SMALL_LIMIT))
_NULL: Final = _encode_varint(-1)


def encode_batch(
    records: Sequence[Fields],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_control: bool = False,
    is_transactional: bool = False,
) -> bytes:
    """Return one batch of at least one Record, or its plain fields.

    The offsets increase, and start at or after `base_offset`.
    A producer numbers its records from 0; the leader assigns the final offsets (`restamp`).
    """
    require(len(records) > 0, "a batch has records")
    first_timestamp = records[0][1]
    body = compress(compression, _encode_records(records, base_offset, first_timestamp))
    attributes = int(compression)
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if is_control:
        attributes |= CONTROL_BIT
    fields = (
        attributes,
        records[-1][0] - base_offset,
        first_timestamp,
        max(map(_TIMESTAMP, records)),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return sealed(base_offset, leader_epoch, fields, body)


def sealed(base_offset: int, leader_epoch: int, fields: Sequence[int], body: bytes) -> bytes:
    """Return a batch with its length and checksum. `fields`: of a BatchHeader, after `crc`."""
    checked = _CHECKED.pack(*fields)
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(body)
    crc = crc32c(body, crc32c(checked))
    start = _START.pack(base_offset, length, leader_epoch, MAGIC, crc)
    return b"".join((start, checked, body))


def _encode_records(records: Sequence[Fields], base_offset: int, base_timestamp: int) -> bytes:
    small, limit, varint = SMALL_VARINTS, SMALL_LIMIT, _encode_varint  # locals: this loop is hot
    parts: list[bytes] = []
    previous = base_offset - 1
    for offset, timestamp, key, value, headers in records:
        if offset <= previous:
            raise InvariantViolation(f"offsets increase: {offset} after {previous}")
        previous = offset
        delta = timestamp - base_timestamp
        time_delta = small[delta] if 0 <= delta < limit else varint(delta)
        delta = offset - base_offset
        offset_delta = small[delta] if delta < limit else varint(delta)
        if key is None:
            key_size = _NULL
        else:
            size = len(key)
            key_size = small[size] if size < limit else varint(size)
        if value is None:
            value_size = _NULL
        else:
            size = len(value)
            value_size = small[size] if size < limit else varint(size)
        tail = _encode_headers(headers) if headers else b"\0"
        # The first byte is the attributes: always 0 so far.
        body = b"".join(
            (b"\0", time_delta, offset_delta, key_size, key or b"", value_size, value or b"", tail)
        )
        size = len(body)
        parts.append(small[size] if size < limit else varint(size))
        parts.append(body)
    return b"".join(parts)


def _encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts = [_encode_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += (_encode_varint(len(name)), name)
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_encode_varint(len(value)), value)
    return b"".join(parts)


def decode_batch(
    buffer: Buffer, position: int = 0, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """Return the records of the batch at `position`, as copies. Raises CorruptBatch."""
    header = read_header(buffer, position)
    return decode_as(Record, body_of(buffer, position, header, decompressed_bytes_max), header)


def decode_batches(
    buffer: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Yield each whole batch of `buffer`, in order; a partial batch at the end is left out.

    Raises CorruptBatch.
    """
    for position, header in iterate_headers(buffer):
        body = body_of(buffer, position, header, decompressed_bytes_max)
        yield header, decode_as(Record, body, header)


def decode_as(
    kind: type[RecordT],
    body: bytes,
    header: BatchHeader,
    *,
    first_offset: int = _OFFSET_MIN,
    before: tuple[object, ...] = (),
    behind: tuple[object, ...] = (),
) -> list[RecordT]:
    """Return the records from `first_offset` on in the `body_of` a batch.

    Each is a tuple of this type: the items `before`, its Fields, the items `behind`. Raises
    CorruptBatch.
    """
    if header.base_offset >= first_offset:
        first_offset = _OFFSET_MIN
    if lane.functions is not None:
        found: list[RecordT] | None = lane.functions.decode_records(
            body, header, first_offset, kind, before, behind
        )
        if found is not None:
            return found
    decoded: Sequence[tuple[Any, ...]] = decode_body(body, header)
    if first_offset > _OFFSET_MIN:
        decoded = [fields for fields in decoded if fields[0] >= first_offset]
    if before or behind:
        decoded = [before + fields + behind for fields in decoded]
    return list(map(tuple.__new__, repeat(kind), decoded))  # half the time of `_make`


def body_of(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> bytes:
    """Return the valid batch's records, decompressed. Raises CorruptBatch."""
    validate_batch(buffer, position, header)
    if header.record_count == 0:  # compaction has removed all records
        return b""
    body = memoryview(buffer)[position + HEADER_BYTES : position + header.size_in_bytes]
    return decompress(header.compression, body, size_max=decompressed_bytes_max)


def decode_body(data: bytes, header: BatchHeader) -> list[Fields]:
    """Return the records in the `body_of` a batch as plain tuples. Raises CorruptBatch."""
    try:
        return _decode_records(data, header)
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"the records at offset {header.base_offset}: {error}") from error


def _decode_records(data: bytes, header: BatchHeader) -> list[Fields]:
    """Return the fields of the records in `data`.

    Raises CorruptBatch, IndexError or UnicodeDecodeError if `data` does not match `header`.
    """
    records: list[Fields] = []
    p, left, last_offset = 0, header.record_count, header.base_offset - 1
    while left >= RUN_MIN and not header.has_log_append_time:
        run = decode_run(data, p, left, header.base_offset, header.base_timestamp)
        if run is None or run[0][0][0] <= last_offset:
            break
        records += run[0]
        p, left, last_offset = run[1], left - len(run[0]), records[-1][0]
    p = _walk(data, p, left, header, records)
    if p != len(data):
        raise CorruptBatch(f"{len(data) - p} bytes after the last record")
    if records and records[-1][0] > header.last_offset:
        raise CorruptBatch("the last record is behind the end of its batch")
    return records


def _walk(  # noqa: C901, PLR0912, PLR0915 - the hot loop: a call for each number would double its time
    data: bytes, p: int, count: int, header: BatchHeader, records: list[Fields]
) -> int:
    """Append the fields of `count` records at `p`; return the position after them."""
    unsigned, small, append = _read_unsigned, SMALL, records.append  # locals: this loop is hot
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.has_log_append_time else None
    last_offset = records[-1][0] if records else base_offset - 1
    for _ in range(count):
        size = data[p]
        if size < 0x80:
            p += 1
        elif data[p + 1] < 0x80:
            size, p = size + (data[p + 1] - 1 << 7), p + 2
        else:
            size, p = unsigned(data, p)
        end = p + (size >> 1)
        byte = data[p + 1]  # after a byte of attributes
        if byte < 0x80:
            timestamp, p = base_timestamp + small[byte], p + 2
        else:
            delta, p = read_varint(data, p + 1)
            timestamp = base_timestamp + delta
        byte = data[p]
        if byte < 0x80:
            offset, p = base_offset + small[byte], p + 1
        elif data[p + 1] < 0x80:
            byte += data[p + 1] - 1 << 7
            offset, p = base_offset + (byte >> 1 ^ -(byte & 1)), p + 2
        else:
            delta, p = read_varint(data, p)
            offset = base_offset + delta
        length = data[p]
        if length < 0x80:
            p += 1
        else:
            length, p = unsigned(data, p)
        key = None if length & 1 else data[p : (p := p + (length >> 1))]  # zigzag encoded
        length = data[p]
        if length < 0x80:
            p += 1
        elif data[p + 1] < 0x80:
            length, p = length + (data[p + 1] - 1 << 7), p + 2
        else:
            length, p = unsigned(data, p)
        value = None if length & 1 else data[p : (p := p + (length >> 1))]
        headers, p = decode_headers(data, p) if data[p] else ((), p + 1)
        if p != end or size & 1:
            raise CorruptBatch("a record does not have its declared length")
        if offset <= last_offset:
            raise CorruptBatch("the offsets of records do not ascend")
        last_offset = offset
        append((offset, timestamp if append_time is None else append_time, key, value, headers))
    return p


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return a zigzag number: (value, next position). Raises IndexError at the end of `data`."""
    value, position = _read_unsigned(data, position)
    return value >> 1 ^ -(value & 1), position


def _read_unsigned(data: Buffer, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    second = data[position + 1]
    value = byte & 0x7F | (second & 0x7F) << 7
    position += 2
    shift = 14
    while second >= 0x80:
        second = data[position]
        position += 1
        value |= (second & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise CorruptBatch("a number takes more than ten bytes")
    return value, position


def decode_headers(data: bytes, position: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    """Return a record's headers at `position`, and the position after them.

    Raises CorruptBatch, IndexError or UnicodeDecodeError.
    """
    count, position = read_varint(data, position)
    if count < 0:
        raise CorruptBatch(f"{count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        size, position = read_varint(data, position)
        if size < 0:
            raise CorruptBatch("a header without a key")
        key = data[position : position + size].decode()
        size, position = read_varint(data, position + size)
        value = None
        if size >= 0:
            value = data[position : position + size]
            position += size
        headers.append((key, value))
    return tuple(headers), position

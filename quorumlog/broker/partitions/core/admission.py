"""The admission of a client's record batches, by their header and every record.

A batch is refused whole. A topic with a `compression.type` other than `producer` gets its batches
compressed anew: the same records, in a new body. Batches that brokers write (internal topics) are
checked by their header alone. Sources: KIP-98 (one batch of format 2 per partition and request),
KIP-390 (levels of compression), KIP-467 (errors of single records), KIP-937 (timestamps); Kafka's
`ProduceRequest.validateRecords` and `LogValidator`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

from quorumlog.broker.partitions.core.data_path import RecordError
from quorumlog.invariants import some
from quorumlog.native import lane
from quorumlog.settings.kinds import LONG_MAX
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import BatchTooLarge
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.inspection import (
    RecordsSummary,
    inspect_records,
    iterate_facts,
    recompressed,
    unfold,
    with_max_timestamp,
)
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    CorruptBatch,
    read_header,
    validate_checksum,
)

# DEVIATION: Kafka accepts any number of records, and lists every invalid record.
# docs/decisions/0038-record-validation.md
ITEMS_MAX: Final = 250_000  # records and their headers in one batch: a quarter of a second
BYTES_AT_ONCE: Final = 1024 * 1024  # of a run, until the next look at the time: less than 1 ms
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024  # or max.message.bytes, if that is larger
RECORD_ERRORS_MAX: Final = 1000
RECORD_ERRORS_SHOWN: Final = 3  # in the message for the whole batch

NO_TIMESTAMP: Final = -1
ZSTD_SINCE: Final = 7  # the version of Produce (KIP-110)
_COMPRESSIONS: Final = frozenset(Compression)
_STORED: Final = {"uncompressed": Compression.NONE} | {
    one.name.lower(): one for one in Compression if one is not Compression.NONE
}
"""The compression of stored batches by `compression.type`, unless that is `producer`."""
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22  # the low byte of two


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The limits of a topic, from its settings or the broker's. Sizes in bytes, durations in ms."""

    max_message_bytes: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    is_compacted: bool  # then every record needs a key
    has_append_time: bool  # then records get the broker's time
    is_internal: bool  # then only brokers write to it, and their records are trusted
    compression: Compression | None = None  # of stored batches; None: the producer's
    compression_level: int | None = None

    def behind(self, ahead_ms: int) -> "TopicLimits":
        """Return limits for clients whose clocks are up to `ahead_ms` behind the broker's."""
        before_max_ms = min(self.timestamp_before_max_ms + ahead_ms, LONG_MAX)
        return replace(self, timestamp_before_max_ms=before_max_ms) if ahead_ms else self


def topic_limits(config: TopicConfig, *, is_internal: bool) -> TopicLimits:
    """Return the limits of a topic; with LogAppendTime a producer's timestamps are unlimited."""
    has_append_time = config.message_timestamp_type == "LogAppendTime"
    before_max_ms, after_max_ms = LONG_MAX, LONG_MAX
    compression = None if is_internal else _STORED.get(config.compression_type)
    if not has_append_time:
        before_max_ms = config.message_timestamp_before_max_ms
        after_max_ms = config.message_timestamp_after_max_ms
    return TopicLimits(
        max_message_bytes=config.max_message_bytes,
        timestamp_before_max_ms=before_max_ms,
        timestamp_after_max_ms=after_max_ms,
        is_compacted="compact" in config.policies,
        has_append_time=has_append_time,
        is_internal=is_internal,
        compression=compression,
        compression_level=_level(config, compression),
    )


def _level(config: TopicConfig, compression: Compression | None) -> int | None:
    match compression:
        case Compression.GZIP:
            return config.compression_gzip_level
        case Compression.LZ4:
            return config.compression_lz4_level
        case Compression.ZSTD:
            return config.compression_zstd_level
        case _:
            return None


class Admission(NamedTuple):
    """With NONE, `records` is the one batch to append and `header` its header.

    `records` is the client's batch, or a copy: its header has the largest timestamp of its records
    or the time of the append, or its records are compressed anew.
    """

    error_code: ErrorCode
    header: BatchHeader | None = None
    records: Buffer = b""
    reason: str | None = None
    record_errors: Sequence[RecordError] = ()


_new_admission: Final = tuple.__new__  # half the cost of a call of the class


def is_zstd_too_early(records: Buffer, produce_version: int) -> bool:
    """Whether the batch uses zstd in a request version that does not allow it (KIP-110)."""
    return (
        produce_version < ZSTD_SINCE
        and len(records) >= HEADER_BYTES
        and records[_MAGIC_AT] == MAGIC
        and records[_ATTRIBUTES_AT] & COMPRESSION_MASK == Compression.ZSTD
    )


def is_transactional(records: Buffer) -> bool:
    """Whether the first batch is part of a transaction (KIP-98)."""
    return (
        len(records) >= HEADER_BYTES
        and records[_MAGIC_AT] == MAGIC
        and bool(records[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT)
    )


def compression_bits(records: Buffer) -> int:
    """Return the compression type in the attributes of a batch; 0: none, or no batch."""
    return records[_ATTRIBUTES_AT] & COMPRESSION_MASK if len(records) >= HEADER_BYTES else 0


def usual_headers(
    batches: Sequence[Buffer], limits: TopicLimits, wall_ms: int
) -> list[BatchHeader]:
    """Return the headers of leading batches that `admit` admits unchanged, by the native lane.

    The next batch needs `admit`: it is compressed or unusual, or so many bytes would take long.
    """
    functions = lane.functions
    if functions is None or limits.has_append_time or limits.is_internal or limits.compression:
        return []
    earliest = wall_ms - limits.timestamp_before_max_ms
    latest = min(wall_ms + limits.timestamp_after_max_ms, LONG_MAX)
    found = functions.admit(
        *(batches, BatchHeader, limits.max_message_bytes, earliest, latest),
        *(limits.is_compacted, ITEMS_MAX, BYTES_AT_ONCE),
    )
    return cast(list[BatchHeader], found)


def admit(records: Buffer, limits: TopicLimits, wall_ms: int, at: TopicPartition) -> Admission:
    """Check the records that a client sent for the partition `at`.

    A wrong checksum is CORRUPT_MESSAGE: the client may send the batch again. Every other error is
    final: the same bytes are refused each time.
    """
    usual = usual_headers((records,), limits, wall_ms)
    if usual:
        return Admission(ErrorCode.NONE, usual[0], records)
    framed = _judge_frame(records, limits)
    if framed.header is None or limits.is_internal:
        return framed
    compression = framed.header.attributes & COMPRESSION_MASK
    if compression not in _COMPRESSIONS:
        reason = f"there is no compression type {compression}"
        return Admission(ErrorCode.UNKNOWN_SERVER_ERROR, reason=reason)  # as Kafka
    return _judge_records(framed, framed.header, limits, wall_ms, at)


def _judge_frame(records: Buffer, limits: TopicLimits) -> Admission:
    size = len(records)
    if size > limits.max_message_bytes:
        reason = f"a batch of {size} bytes; max.message.bytes is {limits.max_message_bytes}"
        return Admission(ErrorCode.MESSAGE_TOO_LARGE, reason=reason)
    if size < HEADER_BYTES:
        return _invalid(f"{size} bytes are no record batch")
    if records[_MAGIC_AT] < MAGIC:
        return _invalid(f"message format {records[_MAGIC_AT]}: only batches of format 2 are taken")
    try:
        header = read_header(records)
        if header.size_in_bytes != size:
            # DEVIATION: Kafka drops the bytes after the first batch, unless they are a batch.
            # docs/decisions/0038-record-validation.md
            return _invalid(f"{size} bytes are not one batch of {header.size_in_bytes} bytes")
        validate_checksum(records, 0, header)
    except CorruptBatch as error:
        return Admission(ErrorCode.CORRUPT_MESSAGE, reason=str(error))
    flaw = _flaw(header, is_internal=limits.is_internal)
    usual = ErrorCode.NONE, header, records, None, ()
    return _new_admission(Admission, usual) if flaw is None else _invalid(flaw)


def _flaw(header: BatchHeader, *, is_internal: bool) -> str | None:
    if header.attributes & CONTROL_BIT:
        return "a client may not write control batches"
    if header.base_offset != 0:
        return f"the base offset of a new batch is 0, not {header.base_offset}"
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        return f"{header.record_count} records, the last at {header.last_offset_delta}"
    if header.producer_id < 0:
        return "a transactional batch without a producer id" if header.is_transactional else None
    # A coordinator appends to a client's transaction without a sequence.
    needs_sequence = not (is_internal and header.is_transactional)
    if header.producer_epoch < 0 or (needs_sequence and header.base_sequence < 0):
        return "a producer id without epoch or sequence"
    return None


def _judge_records(
    framed: Admission, header: BatchHeader, limits: TopicLimits, wall_ms: int, at: TopicPartition
) -> Admission:
    records = framed.records
    bytes_max = max(DECOMPRESSED_BYTES_MAX, limits.max_message_bytes)
    try:
        data = unfold(records, header, decompressed_bytes_max=bytes_max)
        summary = inspect_records(data, header, items_max=ITEMS_MAX)
    except BatchTooLarge as error:  # clients split a batch after this error
        return Admission(ErrorCode.MESSAGE_TOO_LARGE, reason=str(error))
    except CorruptBatch as error:
        return _invalid(str(error))
    if _may_break(summary, limits, wall_ms):
        refusal = _refusal(data, header, limits, wall_ms, at)
        if refusal is not None:
            return refusal
    admitted = _stamped(framed, header, limits, wall_ms, summary.max_timestamp)
    compression = limits.compression
    if compression is None or compression is header.compression:
        return admitted
    header = some(admitted.header, "an admitted batch has a header")
    batch, header = recompressed(header, data, compression, limits.compression_level)
    if len(batch) > limits.max_message_bytes:  # as Kafka, which checks the size again
        reason = f"a batch of {len(batch)} bytes after its compression by the broker; "
        reason += f"max.message.bytes is {limits.max_message_bytes}"
        return Admission(ErrorCode.MESSAGE_TOO_LARGE, reason=reason)
    return Admission(ErrorCode.NONE, header, batch)


def _stamped(
    framed: Admission, header: BatchHeader, limits: TopicLimits, wall_ms: int, max_timestamp: int
) -> Admission:
    """Return the batch with the time of the append, or its records' largest timestamp."""
    if limits.has_append_time:
        stamped, header = with_max_timestamp(framed.records, header, wall_ms, is_append_time=True)
        return Admission(ErrorCode.NONE, header, stamped)
    max_timestamp = max(max_timestamp, NO_TIMESTAMP)
    if header.max_timestamp == max_timestamp and not header.has_log_append_time:
        return framed
    stamped, header = with_max_timestamp(framed.records, header, max_timestamp)
    return Admission(ErrorCode.NONE, header, stamped)


def _may_break(summary: RecordsSummary, limits: TopicLimits, wall_ms: int) -> bool:
    """Whether a record may exceed the limits; if False, all are within them."""
    return (
        (summary.has_null_key and limits.is_compacted)
        or summary.max_timestamp > wall_ms + limits.timestamp_after_max_ms
        or summary.min_timestamp < wall_ms - limits.timestamp_before_max_ms
    )


def _refusal(
    data: Buffer, header: BatchHeader, limits: TopicLimits, wall_ms: int, at: TopicPartition
) -> Admission | None:
    """Return a refusal that lists the invalid records, or None. Timestamp -1 is always valid."""
    earliest = wall_ms - limits.timestamp_before_max_ms
    latest = wall_ms + limits.timestamp_after_max_ms
    errors: list[RecordError] = []
    count, error_code = 0, ErrorCode.INVALID_RECORD
    for index, (timestamp_ms, has_key) in enumerate(iterate_facts(data, header)):
        if limits.is_compacted and not has_key:
            message = f"Compacted topic cannot accept message without key in topic partition {at}"
        elif timestamp_ms != NO_TIMESTAMP and not earliest <= timestamp_ms <= latest:
            error_code = ErrorCode.INVALID_TIMESTAMP
            message = (
                f"Timestamp {timestamp_ms} of message with offset {index} is out of range. "
                f"The timestamp should be within [{earliest}, {latest}]"
            )
        else:
            continue
        count += 1
        if len(errors) < RECORD_ERRORS_MAX:
            errors.append(RecordError(index, message))
    if not errors:
        return None
    reason = "One or more records have been rejected due to "
    if error_code is ErrorCode.INVALID_TIMESTAMP:
        reason += "invalid timestamp"
    else:
        shown = ", ".join(map(str, errors[:RECORD_ERRORS_SHOWN]))
        reason += f"{count} record errors in total, and only showing the first three errors at most"
        reason += f": [{shown}]"
    return Admission(error_code, reason=reason, record_errors=errors)


def _invalid(reason: str) -> Admission:
    return Admission(ErrorCode.INVALID_RECORD, reason=reason)

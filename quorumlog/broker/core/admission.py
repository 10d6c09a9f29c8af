"""Which record batches a client may append: judged by their headers alone.

Sources: KIP-98 (one batch of format 2 per partition and request), KIP-937 (timestamps).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quorumlog.broker.core.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader, CorruptBatch, read_header, validate_batch

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """`max.message.bytes` and `message.timestamp.after.max.ms` of a topic."""

    max_message_bytes: int
    timestamp_after_max_ms: int


def topic_limits(settings: BrokerSettings, configs: Mapping[str, str]) -> TopicLimits:
    """Return the broker's limits with what the topic's configs say of them."""
    after_max_ms = settings.log_message_timestamp_after_max_ms
    return TopicLimits(
        max_message_bytes=int(configs.get("max.message.bytes", settings.message_max_bytes)),
        timestamp_after_max_ms=int(configs.get("message.timestamp.after.max.ms", after_max_ms)),
    )


class Admission(NamedTuple):
    """With NONE, `header` is that of the one batch to append."""

    error_code: ErrorCode
    header: BatchHeader | None = None
    reason: str | None = None


def admit(records: Buffer, limits: TopicLimits, now_ms: int) -> Admission:
    """Judge what a client sent for one partition. Reads the header and computes the CRC."""
    size = len(records)
    if size > limits.max_message_bytes:
        reason = f"a batch of {size} bytes; max.message.bytes is {limits.max_message_bytes}"
        return Admission(ErrorCode.MESSAGE_TOO_LARGE, None, reason)
    try:
        header = read_header(records)
        if header.size_in_bytes < size:
            return _invalid("more than one batch for one partition")
        validate_batch(records, 0, header)
    except CorruptBatch as error:
        return Admission(ErrorCode.CORRUPT_MESSAGE, None, str(error))
    return _judge(header, limits, now_ms)


def _judge(header: BatchHeader, limits: TopicLimits, now_ms: int) -> Admission:
    flaw = _flaw(header)
    if flaw is not None:
        return _invalid(flaw)
    if header.is_transactional:
        # DEVIATION: Kafka appends it. Here nobody could ever end the transaction.
        # docs/decisions/0013-transactional-ids-are-refused.md
        return Admission(ErrorCode.UNSUPPORTED_VERSION, None, "this broker has no transactions")
    if header.max_timestamp - now_ms > limits.timestamp_after_max_ms:
        reason = f"timestamp {header.max_timestamp} is too far in the future"
        return Admission(ErrorCode.INVALID_TIMESTAMP, None, reason)
    return Admission(ErrorCode.NONE, header)


def _flaw(header: BatchHeader) -> str | None:
    if header.is_control:
        return "a client may not write control batches"
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        return f"{header.record_count} records, the last at {header.last_offset_delta}"
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        return "a producer id without epoch or sequence"
    return None


def _invalid(reason: str) -> Admission:
    return Admission(ErrorCode.INVALID_RECORD, None, reason)

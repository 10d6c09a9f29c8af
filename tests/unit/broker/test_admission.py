import pytest

from quorumlog.broker.core.admission import admit, topic_limits
from quorumlog.broker.core.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import Record, encode_batch

NOW_MS = 1_000_000
LIMITS = topic_limits(BrokerSettings(message_max_bytes=200), {})
ONE = [Record(0, NOW_MS, None, b"value")]


def test_one_whole_batch_is_admitted() -> None:
    admitted = admit(encode_batch(ONE), LIMITS, NOW_MS)
    assert admitted.error_code is ErrorCode.NONE
    assert admitted.header is not None
    assert admitted.header.record_count == 1


def changed(at: int, value: int) -> bytes:
    batch = bytearray(encode_batch(ONE))
    batch[at] = value
    return bytes(batch)


@pytest.mark.parametrize(
    ("records", "error_code"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (encode_batch(ONE)[:-1], ErrorCode.CORRUPT_MESSAGE),
        (changed(-1, 0xFF), ErrorCode.CORRUPT_MESSAGE),
        (changed(16, 1), ErrorCode.CORRUPT_MESSAGE),  # magic
        (encode_batch(ONE) * 2, ErrorCode.INVALID_RECORD),
        (encode_batch(ONE, is_control=True), ErrorCode.INVALID_RECORD),
        (encode_batch(ONE, producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (
            encode_batch(
                ONE, producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
            ),
            ErrorCode.UNSUPPORTED_VERSION,
        ),
        (encode_batch([Record(0, 1, None, bytes(200))]), ErrorCode.MESSAGE_TOO_LARGE),
        (encode_batch([Record(0, NOW_MS + 3_600_001, None, b"")]), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_what_is_refused(records: bytes, error_code: ErrorCode) -> None:
    assert admit(records, LIMITS, NOW_MS).error_code is error_code


def test_a_topic_may_allow_more() -> None:
    limits = topic_limits(BrokerSettings(message_max_bytes=10), {"max.message.bytes": "500"})
    assert admit(encode_batch(ONE), limits, NOW_MS).error_code is ErrorCode.NONE

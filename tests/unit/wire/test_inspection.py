"""The refusals of a broker inside a batch, its findings there, and transaction markers."""

import struct

import pytest

from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.errors import BatchTooLarge, CorruptBatch
from quorumlog.wire.codec.inspection import (
    RecordFacts,
    RecordsSummary,
    inspect_records,
    iterate_facts,
    unfold,
    with_max_timestamp,
)
from quorumlog.wire.codec.records import (
    Record,
    decode_batch,
    encode_batch,
    read_header,
    validate_batch,
)
from quorumlog.wire.codec.transaction_markers import (
    TransactionMarker,
    decode_marker,
    encode_marker,
    marked_headers,
)
from tests.support.wire.handmade_bytes import batch, record, sized, varint

NOW_MS = 1_700_000_000_000


def inspect(data: bytes, items_max: int = 1000) -> RecordsSummary:
    header = read_header(data)
    body = unfold(data, header, decompressed_bytes_max=1 << 20)
    return inspect_records(body, header, items_max=items_max)


@pytest.mark.parametrize("compression", Compression)
def test_the_summary_says_what_the_records_come_to(compression: Compression) -> None:
    records = [
        Record(0, NOW_MS, b"key", b"value"),
        Record(1, NOW_MS + 100_000, b"", None, (("header", b"x"), ("", None))),
        Record(2, NOW_MS - 5, b"k" * 100, b"v" * 10_000),
    ]
    data = encode_batch(records, compression=compression)
    assert inspect(data) == RecordsSummary(NOW_MS - 5, NOW_MS + 100_000, False)
    records[1] = records[1]._replace(key=None)
    assert inspect(encode_batch(records, compression=compression)).has_null_key


def test_the_facts_of_each_record() -> None:
    records = [
        Record(number, NOW_MS + number * 50 * (-1) ** number, key, b"v" * number * 10)
        for number, key in enumerate((b"k" * 200, None, b"", b"key"))
    ]
    data = encode_batch(records)
    assert list(iterate_facts(memoryview(data)[61:], read_header(data))) == [
        RecordFacts(one.timestamp_ms, one.key is not None) for one in records
    ]


@pytest.mark.parametrize("count", [63, 64, 65, 8191, 8192, 8193])
def test_offsets_of_every_size(count: int) -> None:
    body = b"".join(record(offset) for offset in range(count))
    assert inspect(batch(body, count), items_max=count).max_timestamp == 0
    last = record(count - 1)
    for other in (count - 2, count):
        with pytest.raises(CorruptBatch, match="another offset delta"):
            inspect(batch(body[: -len(last)] + record(other), count), items_max=count)


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 65, 8180, 8191, 8192, 8193, 2**21])
def test_keys_values_and_headers_of_every_size(size: int) -> None:
    data = b"x" * size
    for one in (
        record(key=data),
        record(value=data),
        record(headers=((data, b""),)),
        record(headers=((b"h", data),)),
    ):
        assert inspect(batch(one)) == (0, 0, False)
        with pytest.raises(CorruptBatch):
            inspect(batch(one[:-1]))


@pytest.mark.parametrize("delta", [63, 64, -64, -65, 8191, 8192, 2**31, -(2**31), 2**62, -(2**62)])
def test_timestamps_of_every_size_may_be_before_that_of_the_header(delta: int) -> None:
    assert inspect(batch(record(time_delta=delta))) == (delta, delta, False)
    seen = inspect(batch(record(time_delta=delta), base_timestamp=5))
    assert seen == (delta + 5, delta + 5, False)


GOOD = record()
LONG = b"\x80" * 4 + b"\x00"  # zero in five bytes
BODY = b"\0\0\0" + sized(b"k") + sized(b"v") + varint(0)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "1 records in 0 bytes"),
        (GOOD[:-1], "too early"),
        (record(0, 0, None, None)[:-1], "1 records in 6 bytes"),
        (varint(9) + BODY[:-1] + varint(2) + b"\0\1", "2 headers in 2 bytes"),
        (GOOD + b"\0", "1 bytes after the last record"),
        (b"\xff" * 20, "more than 5 bytes"),
        (varint(len(BODY) + 1) + BODY, "does not have its declared length"),
        (varint(len(BODY) - 1) + BODY, "does not have its declared length"),
        (varint(-len(BODY)) + BODY, "does not have its declared length"),
        (varint(len(BODY)) + b"\x01" + BODY[1:], "attributes: 1"),
        (record(1), "another offset delta"),
        (record(-1), "another offset delta"),
        (varint(7) + b"\0\0\0" + varint(-2) + b"\0\0", "key of negative length"),
        (varint(7) + b"\0\0\0\0" + varint(-2) + b"\0\0", "value of negative length"),
        (varint(7) + BODY[:-1] + varint(-1), "negative number of headers"),
        (varint(9) + BODY[:-1] + varint(1) + varint(-1) + b"\0", "header without a key"),
        (varint(9) + BODY[:-1] + varint(1) + b"\0" + varint(-2), "header with a value of negative"),
        (record(headers=((b"\xff", b""),)), "no UTF-8"),
        (varint(12) + b"\0\0\0" + b"\x80" * 5 + b"\0\1\0", "more than 5 bytes"),
        (varint(12) + b"\0\0\0" + b"\xff" * 4 + b"\x1f" + b"\1\0", "or is too large"),
        (varint(16) + b"\0" + b"\x80" * 10 + b"\0\0\1\1\0", "more than 10 bytes"),
        (varint(15) + b"\0" + b"\xff" * 9 + b"\x03\0\1\1\0", "or is too large"),
    ],
)
def test_what_is_no_record_is_refused(body: bytes, reason: str) -> None:
    data = batch(body)
    assert data[17:21] == batch(body)[17:21]
    with pytest.raises(CorruptBatch, match=reason):
        inspect(data)


def test_a_number_may_take_more_bytes_than_it_needs_but_not_too_many() -> None:
    for body in (LONG + BODY[1:3], b"\0" + b"\x80\0" + BODY[2:3], b"\0\0" + LONG):
        whole = body if body.startswith(b"\0") else b"\0" + body[:5] + body[6:]
        assert inspect(batch(varint(len(whole + BODY[3:])) + whole + BODY[3:])) == (0, 0, False)


@pytest.mark.parametrize(
    ("base", "delta"), [(2**63 - 1, 1), (-(2**63), -1), (2**63 - 5, 2**63 - 1)]
)
def test_a_timestamp_that_does_not_fit_is_refused(base: int, delta: int) -> None:
    with pytest.raises(CorruptBatch, match="64 bits"):
        inspect(batch(record(time_delta=delta), base_timestamp=base))


def test_records_and_their_headers_count_for_the_limit() -> None:
    three = b"".join(record(number) for number in range(3))
    assert inspect(batch(three, 3), items_max=3).max_timestamp == 0
    with pytest.raises(BatchTooLarge, match="3 records"):
        inspect(batch(three, 3), items_max=2)
    headers = record(headers=((b"a", b""), (b"b", None)))
    assert inspect(batch(headers), items_max=3).max_timestamp == 0
    with pytest.raises(BatchTooLarge, match="headers"):
        inspect(batch(headers), items_max=2)


@pytest.mark.parametrize("compression", [one for one in Compression if one])
def test_what_unfolds_to_too_much_is_not_unfolded(compression: Compression) -> None:
    data = batch(record(value=bytes(2**20)), compression=compression)
    assert len(data) < 2**17
    with pytest.raises(BatchTooLarge):
        inspect(data)


def test_an_unknown_compression_is_refused() -> None:
    for number in (5, 6, 7):
        with pytest.raises(CorruptBatch, match=f"compression type {number}"):
            inspect(batch(record(), attributes=number))


@pytest.mark.parametrize("attributes", [0, 0x08])
def test_a_mended_header_is_right_in_every_field(attributes: int) -> None:
    body = record() + record(1, 4000)
    data = batch(body, 2, base_timestamp=1000, max_timestamp=77, attributes=attributes)
    before = bytes(data)
    mended, header = with_max_timestamp(data, read_header(data), 5000)
    assert data == before
    assert header == read_header(mended)
    assert header == read_header(batch(body, 2, base_timestamp=1000, max_timestamp=5000))._replace(
        leader_epoch=header.leader_epoch
    )
    validate_batch(mended, 0, header)
    assert [one.timestamp_ms for one in decode_batch(mended)] == [1000, 5000]
    assert struct.unpack_from(">q", mended, 35) == (5000,)


# --- the bytes of a transaction marker, and markers that cannot be read ---


def _control(key: bytes | None, value: bytes | None) -> bytes:
    return encode_batch([Record(0, 5, key, value, ())], is_control=True, is_transactional=True)


@pytest.mark.parametrize(("commits", "kind"), [(True, b"\0\1"), (False, b"\0\0")])
def test_a_marker_has_the_bytes_of_kafka_and_is_read_back(commits: bool, kind: bytes) -> None:
    marker = TransactionMarker(4001, 7, 3, commits)
    batch = encode_marker(marker, 1_700_000_000_000)
    header = read_header(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4001, 7, -1)
    [record] = decode_batch(batch)
    assert record == (0, 1_700_000_000_000, b"\0\0" + kind, b"\0\0\0\0\0\3", ())
    assert decode_marker(batch) == marker


def test_a_later_version_of_the_record_may_have_more_fields() -> None:
    batch = _control(b"\0\1\0\1more", b"\0\1\0\0\0\x09more")
    assert decode_marker(batch) == TransactionMarker(-1, -1, 9, commits=True)


def test_another_control_record_is_no_marker() -> None:
    assert decode_marker(_control(b"\0\0\0\2", b"leader change")) is None


@pytest.mark.parametrize(("key", "value"), [(None, None), (b"\0\0\0", b""), (b"\0\0\0\1", b"\0\0")])
def test_a_short_record_is_an_error(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ValueError, match="not a transaction marker"):
        decode_marker(_control(key, value))


def test_markers_among_batches_are_those_that_a_decoder_finds() -> None:
    data = encode_batch([Record(0, 5, None, b"v", ())], producer_id=1, is_transactional=True)
    batches = [
        data,
        encode_marker(TransactionMarker(4001, 7, 3, commits=True), 5),
        encode_marker(TransactionMarker(-(2**63), -(2**15), -(2**31), commits=False), 5),
        _control(b"\0\0\0\2", b"\0\0\0\0\0\3"),  # a control record of another kind, as long
        _control(b"\0\1\0\1more", b"\0\1\0\0\0\x09more"),
        _control(b"\0\0\0\1more", b"\0\0"),  # as long as a marker
        encode_marker(TransactionMarker(4001, 8, 3, commits=False), 5),
    ]
    with pytest.raises(CorruptBatch, match="not a transaction marker"):
        marked_headers(b"".join(batches))
    del batches[5]
    found = [marker for _, _, marker in marked_headers(b"".join(batches))]
    assert found == [None, *map(decode_marker, batches[1:])]
    assert [marker is None for marker in found] == [True, False, False, True, False, False]

"""Record batches: round trips, two other codecs as witnesses, and no byte changed unseen."""

import contextlib
import importlib
import struct
import warnings
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import (
    HEADER_BYTES,
    Record,
    decode_batch,
    decode_batches,
    encode_batch,
    iterate_headers,
    read_header,
    restamp,
    validate_batch,
)
from tests.support.native import each_lane
from tests.support.sizes import examples

pytestmark = pytest.mark.usefixtures(each_lane.__name__)
SETTINGS = examples(60, database=None)
NOW_MS = 1_700_000_000_099
texts = st.text(st.characters(codec="utf-8"), max_size=6)
optional_bytes = st.none() | st.binary(max_size=200)
timestamps = st.integers(NOW_MS - 10**6, NOW_MS + 10**6) | st.sampled_from([-1, 0, 2**62])
set_timestamps = timestamps.filter(lambda timestamp: timestamp >= 0)


@st.composite
def batches(
    draw: st.DrawFn,
    *,
    base_offset: int = 0,
    with_gaps: bool = True,
    times: st.SearchStrategy[int] = timestamps,
) -> list[Record]:
    offset, records = base_offset - 1, []
    for _ in range(draw(st.integers(1, 8))):
        offset += draw(st.integers(1, 5000)) if with_gaps else 1
        headers = draw(st.lists(st.tuples(texts, optional_bytes), max_size=2))
        records.append(
            Record(offset, draw(times), draw(optional_bytes), draw(optional_bytes), tuple(headers))
        )
    return records


compressions = st.sampled_from(Compression)


@SETTINGS
@given(batches(base_offset=10**12), compressions)
def test_a_batch_comes_back(records: list[Record], compression: Compression) -> None:
    data = encode_batch(
        records,
        base_offset=10**12,
        leader_epoch=4,
        compression=compression,
        producer_id=2**60,
        producer_epoch=9,
        base_sequence=2**31 - 2,
        is_transactional=True,
    )
    assert decode_batch(data) == decode_batch(memoryview(b"ab" + data), 2) == records
    header = read_header(data)
    assert header.size_in_bytes == len(data)
    assert (header.base_offset, header.last_offset) == (10**12, records[-1].offset)
    assert header.next_offset == header.last_offset + 1
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    assert header.record_count == len(records)
    assert header.compression is compression
    assert (header.is_transactional, header.is_control) == (True, False)
    assert header.last_sequence == (2**31 - 2 + header.last_offset_delta) % 2**31


@SETTINGS
@given(batches(with_gaps=False, times=set_timestamps), compressions)  # -1: their own clock
def test_aiokafka_and_kafka_python_read_ours_and_we_read_theirs(
    records: list[Record], compression: Compression
) -> None:
    for module in witnesses(compression):
        theirs = module.DefaultRecordBatch(encode_batch(records, compression=compression))
        assert theirs.validate_crc()
        seen = [
            Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
            for one in theirs
        ]
        assert seen == records
        builder = module.DefaultRecordBatchBuilder(
            magic=2,
            compression_type=int(compression),
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=10**6,
        )
        for offset, timestamp, key, value, headers in records:
            builder.append(offset, timestamp, key, value, list(headers))
        assert decode_batch(bytes(builder.build())) == records


def witnesses(compression: Compression) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas so
        found = [importlib.import_module("aiokafka.record.default_records")]
        if compression is not Compression.SNAPPY:  # it would need another library
            found.append(importlib.import_module("kafka.record.default_records"))
    return found


@pytest.mark.parametrize("compression", Compression)
def test_no_changed_byte_goes_unseen(compression: Compression) -> None:
    records = [Record(number, NOW_MS + number, b"key", b"value" * 5) for number in range(3)]
    data = encode_batch(records, compression=compression, leader_epoch=1)
    for position in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= change
            if position < 8 or 12 <= position < 16:  # not under the checksum: a leader's to write
                header = read_header(changed)
                shift = header.base_offset
                seen = decode_batch(changed)
                assert [one._replace(offset=one.offset - shift) for one in seen] == records
                continue
            with pytest.raises(CorruptBatch):
                decode_batch(changed)


@pytest.mark.parametrize("compression", Compression)
def test_a_truncated_batch_is_corrupt(compression: Compression) -> None:
    data = encode_batch([Record(0, 1, b"key", b"value" * 9)], compression=compression)
    for size in range(len(data)):
        with pytest.raises(CorruptBatch):
            decode_batch(data[:size])
        assert list(decode_batches(data[:size])) == []
        assert [position for position, _ in iterate_headers(data + data[:size])] == [0]


@SETTINGS
@given(st.binary(min_size=1, max_size=300), st.integers(0, 4), st.data())
def test_garbage_with_a_good_checksum_is_corrupt_or_records(
    body: bytes, compression: int, data: st.DataObject
) -> None:
    count = data.draw(st.sampled_from([0, 1, 2, 2**31 - 1]))
    with contextlib.suppress(CorruptBatch):
        decode_batch(checked_batch(body, count, compression), decompressed_bytes_max=10**6)


def checked_batch(body: bytes, count: int, compression: int = 0) -> bytes:
    """A batch of anything, with a good checksum."""
    checked = struct.pack(">hiqqqhii", compression, 2**31 - 1, 0, 0, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, len(checked) + 9, 0, 2, crc32c(checked)) + checked


GOOD = b"\x0c\0\0\0\x01\x01\0"  # a record of 6 bytes: no key, no value, no headers


def test_a_record_is_what_its_numbers_say() -> None:
    assert decode_batch(checked_batch(GOOD, 1)) == [Record(0, 0, None, None)]
    for body in (
        b"\x0e" + GOOD[1:],  # one byte longer than its fields
        b"\x0e" + GOOD[1:] + b"\0",  # that byte is there
        b"\x0a" + GOOD[1:],  # one byte shorter
        GOOD + b"\0",  # a byte after the last record
        GOOD[:-1] + b"\x01",  # minus one headers
        b"\x0e" + GOOD[1:-1] + b"\x02\x01",  # a header without a key
        b"\x20\0" + b"\x80" * 10 + b"\0" + GOOD[3:],  # a number of eleven bytes
        b"\x0e\0\0\0\x04a\x01\0",  # a key that takes a byte of what follows
    ):
        with pytest.raises(CorruptBatch):
            decode_batch(checked_batch(body, 1))


def test_more_records_than_bytes_are_seen_before_any_is_read() -> None:
    batch = checked_batch(GOOD, 2)
    with pytest.raises(CorruptBatch, match="2 records in 7 bytes"):
        validate_batch(batch, 0, read_header(batch))


@SETTINGS
@given(batches(), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_a_restamped_batch_is_valid(records: list[Record], offset: int, epoch: int) -> None:
    buffer = bytearray(b"before" + encode_batch(records, leader_epoch=-1) + b"after")
    restamp(memoryview(buffer), 6, base_offset=offset, leader_epoch=epoch)
    header = read_header(buffer, 6)
    validate_batch(memoryview(buffer).toreadonly(), 6, header)
    assert (header.base_offset, header.leader_epoch) == (offset, epoch)
    moved = [record._replace(offset=record.offset + offset) for record in records]
    assert decode_batch(buffer, 6) == moved
    assert buffer.endswith(b"after")


def test_batches_are_walked_in_order() -> None:
    first = encode_batch([Record(5, 1, None, b"a"), Record(6, 2, None, b"b")], base_offset=5)
    second = encode_batch([Record(9, 3, b"k", None)], base_offset=7, is_control=True)
    data = first + second
    assert [
        (position, header.base_offset, header.next_offset, header.is_control)
        for position, header in iterate_headers(memoryview(data))
    ] == [(0, 5, 7, False), (len(first), 7, 10, True)]
    assert [len(records) for _, records in decode_batches(data)] == [2, 1]


def test_the_brokers_clock_counts_for_all_records_when_the_batch_says_so() -> None:
    data = bytearray(encode_batch([Record(0, 1, None, b"a"), Record(1, 2, None, b"b")]))
    data[22] |= 0x08
    data[35:43] = (NOW_MS).to_bytes(8)
    data[17:21] = crc32c(data[21:]).to_bytes(4)
    assert read_header(data).has_log_append_time
    assert [record.timestamp_ms for record in decode_batch(data)] == [NOW_MS, NOW_MS]


def test_a_batch_that_claims_less_than_a_header_is_corrupt() -> None:
    data = bytearray(encode_batch([Record(0, 1, None, None)]))
    data[8:12] = (48).to_bytes(4)
    with pytest.raises(CorruptBatch):
        list(iterate_headers(data))
    with pytest.raises(CorruptBatch):
        read_header(data[: HEADER_BYTES - 1])


@pytest.mark.parametrize("offsets", [(3, 3), (4, 3), (1, 2)])
def test_offsets_must_increase_from_the_base(offsets: tuple[int, int]) -> None:
    with pytest.raises(InvariantViolation):
        encode_batch([Record(offset, 0, None, None) for offset in offsets], base_offset=2)


def test_a_batch_is_never_empty() -> None:
    with pytest.raises(InvariantViolation):
        encode_batch([])

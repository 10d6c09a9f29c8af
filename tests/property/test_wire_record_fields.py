"""The decoders of records, with numbers in line and in C, agree with a plain one for any bytes."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorumlog.wire.codec import records as records_module
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import (
    HEADER_BYTES,
    BatchHeader,
    Fields,
    Record,
    _decode_records,
    decode_as,
    decode_body,
    encode_batch,
    read_header,
)
from tests.property.test_wire_records import NOW_MS, batches
from tests.support.native import COMPILED, native, needs_native
from tests.support.sizes import examples

SETTINGS = examples(200)


class _Reader:
    """Reads a record batch's body field by field."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)
            if shift > 70:
                raise CorruptBatch("too long")

    def content(self) -> bytes | None:
        size = self.number()
        return None if size < 0 else self.take(size)

    def take(self, size: int) -> bytes:
        self.position += size
        return self.data[self.position - size : self.position]

    def header(self) -> tuple[str, bytes | None]:
        name = self.content()
        if name is None:
            raise CorruptBatch("no name")
        return name.decode(), self.content()

    def record(self, header: BatchHeader) -> Fields:
        end = self.number() + self.position
        self.position += 1
        timestamp = header.base_timestamp + self.number()
        offset = header.base_offset + self.number()
        key, value, count = self.content(), self.content(), self.number()
        if count < 0:
            raise CorruptBatch("a negative count")
        headers = tuple(self.header() for _ in range(count))
        if self.position != end:
            raise CorruptBatch("another length")
        if header.has_log_append_time:
            timestamp = header.max_timestamp
        return offset, timestamp, key, value, headers


def plainly(data: bytes, header: BatchHeader) -> list[Fields] | None:
    """Return the records; None if the bytes are none."""
    reader = _Reader(data)
    try:
        records = [reader.record(header) for _ in range(header.record_count)]
    except (CorruptBatch, IndexError, UnicodeDecodeError):
        return None
    offsets = [header.base_offset - 1, *(record[0] for record in records)]
    is_in_order = sorted({*offsets}) == offsets and offsets[-1] <= header.last_offset
    return records if reader.position == len(data) and is_in_order else None


def in_line(data: bytes, header: BatchHeader) -> list[Fields] | None:
    try:
        return _decode_records(data, header)
    except (CorruptBatch, IndexError, UnicodeDecodeError):
        return None


def in_c(data: bytes, header: BatchHeader) -> list[Fields] | None:
    """Return the records, which rows and columns agree about; None: they are for Python."""
    records: list[Any] | None = COMPILED.decode_records(
        data, header, -(2**63), Record, ("before",), ("behind", 7)
    )
    columns = COMPILED.decode_columns(data, [(header, data)], header.record_count)
    assert (columns is None) is (records is None)
    if records is None:
        return None
    assert {type(one) for one in records} <= {Record}
    assert all((one[0], *one[6:]) == ("before", "behind", 7) for one in records)
    fields: list[Fields] = [one[1:6] for one in records]
    numbers, pairs = columns
    rows = [*zip(*[iter(memoryview(numbers).cast("q"))] * len(records), strict=True)]
    found = []
    left = iter(pairs)
    for offset, time, key, key_size, value, value_size, count, _ in zip(*rows, strict=True):
        contents = [
            None if size < 0 else data[at : at + size]
            for at, size in ((key, key_size), (value, value_size))
        ]
        found.append((offset, time, *contents, tuple(next(left) for _ in range(count))))
    assert found == fields
    assert not [*left]
    return fields


@st.composite
def alike(draw: st.DrawFn) -> list[Record]:
    """Return records of one size, perhaps but for one of them."""
    sizes = st.sampled_from([None, 0, 1, 63, 64, 100, 8191, 8192])
    key_size, value_size = draw(sizes), draw(sizes)
    offset, step = draw(st.sampled_from([7, 60, 8190])), draw(st.sampled_from([0, 1, 40]))
    records = [
        Record(
            offset + index,
            NOW_MS + index * step // 8,
            None if key_size is None else b"%c" % (index % 251) * key_size,
            None if value_size is None else b"%c" % (index % 241) * value_size,
        )
        for index in range(draw(st.integers(1, 150)))
    ]
    at = draw(st.integers(0, 2 * len(records)))
    if at < len(records):
        records[at] = draw(
            st.sampled_from(
                [
                    records[at]._replace(value=b"another"),
                    records[at]._replace(headers=(("h", b""),)),
                    records[at]._replace(timestamp_ms=NOW_MS - 5),
                ]
            )
        )
        if len(records) > 1 and draw(st.booleans()):  # compaction has removed it
            del records[at]
    return records


@SETTINGS
@given(batches(base_offset=7) | alike(), st.data(), st.booleans())
def test_the_decoder_agrees_with_a_plain_one(
    records: list[Record], data: st.DataObject, has_append_time: bool
) -> None:
    batch = encode_batch(records, base_offset=7)
    header, body = read_header(batch), bytearray(batch[HEADER_BYTES:])
    if has_append_time:
        header = header._replace(attributes=header.attributes | 0x08)
    assert in_line(bytes(body), header) == plainly(bytes(body), header) is not None
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        match data.draw(st.sampled_from(["change", "drop", "insert", "cut"])):
            case "change":
                body[at] = data.draw(st.integers(0, 255))
            case "drop" if len(body) > 1:
                del body[at]
            case "insert":
                body[at:at] = data.draw(st.binary(min_size=1, max_size=12))
            case "cut" if at:
                del body[at:]
            case _:
                pass
    assert in_line(bytes(body), header) == plainly(bytes(body), header)


def assert_agrees(data: bytes, header: BatchHeader, *, must_know: bool = False) -> None:
    found = in_c(data, header)
    assert found == plainly(data, header) or (found is None and not must_know)


@needs_native
@examples(60)
@given(batches(base_offset=7) | alike(), st.data(), st.booleans())
def test_the_lane_agrees_with_a_plain_decoder(
    records: list[Record], data: st.DataObject, has_append_time: bool
) -> None:
    """Each byte changed, each cut; unchanged records must not be left to Python."""
    batch = encode_batch(records, base_offset=7)
    header, body = read_header(batch), batch[HEADER_BYTES:]
    if has_append_time:
        header = header._replace(attributes=header.attributes | 0x08)
    is_ascii = all(key.isascii() for record in records for key, _ in record.headers)
    assert_agrees(body, header, must_know=is_ascii)
    start = data.draw(st.integers(0, max(0, len(body) - 50)))
    for at in range(start, min(start + 50, len(body))):
        assert_agrees(body[:at], header)
        changed = bytearray(body)
        changed[at] = data.draw(st.integers(0, 255)) if at % 20 == 0 else changed[at] ^ 1 << at % 8
        assert_agrees(bytes(changed), header)
    count = data.draw(st.sampled_from([-1, 0, len(records) - 1, len(records) + 1, 2**31 - 1]))
    assert_agrees(body, header._replace(record_count=count))


@needs_native
@pytest.mark.parametrize("base", [2**63 - 1, 2**63 - 3, -(2**63), 2**63, -(2**63) - 1])
def test_the_lane_leaves_numbers_that_are_no_int64_to_python(base: int) -> None:
    """Offsets and times; a reader's first offset, too."""
    records = [Record(n, 100 + n, b"k", None) for n in range(3)]
    batch = encode_batch(records)
    body, header = batch[HEADER_BYTES:], read_header(batch)
    for changed in (header._replace(base_offset=base), header._replace(base_timestamp=base)):
        # Before the smallest offset there is none.
        fits = -(2**63) <= base < 2**63 - 2 and changed.base_offset > -(2**63)
        assert_agrees(body, changed, must_know=fits)
        assert (in_c(body, changed) is not None) is fits
    expected = [one for one in records if one.offset >= base]
    for is_on in (False, True):
        with native(is_on=is_on):
            assert decode_as(Record, body, header, first_offset=base) == expected
            assert decode_as(Record, body, header, first_offset=1) == records[1:]


ONE = read_header(encode_batch([Record(0, 0, None, b"")]))


@SETTINGS
@given(st.binary(max_size=40))
@example(b"\x0c\0\0\0\1\0\0")
@example(b"\x0b\0\0\0\1\0\0")  # a negative length, of the same size
@example(b"\x8c\0\0\0\0\1\0\0")  # a number that is longer than it must be
@example(b"\x8c\x80\0\0\0\0\1\0\0")
@example(b"\x10\0\0\0\x81\0\x81\0\0")  # null in two bytes
@example(b"\x0e\0\0\0\3\0\0\0")  # -2 is null, too
def test_any_bytes_are_a_record_for_both_or_for_none(data: bytes) -> None:
    assert in_line(data, ONE) == plainly(data, ONE)
    if COMPILED is not None:
        assert_agrees(data, ONE)


def test_records_of_one_size_are_decoded_as_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the property compares runs, too: with a byte and with two for the offsets."""
    walked: list[int] = []

    def walk(_data: bytes, p: int, count: int, *_: object) -> int:
        walked.append(count)
        return p

    records = [Record(n, NOW_MS + n // 9, b"k%04d" % n, b"v" * 90) for n in range(300)]
    batch = encode_batch(records)
    monkeypatch.setattr(records_module, "_walk", walk)
    assert decode_body(batch[HEADER_BYTES:], read_header(batch)) == records
    assert walked == [0]

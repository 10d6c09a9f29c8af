"""The pass over the records of a batch, which compares runs of alike records at once, against a
plain reading of the format, record by record: the same summary, or the same error.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.wire.codec.errors import BatchTooLarge, CorruptBatch
from quorumlog.wire.codec.inspection import RecordsSummary, inspect_records
from quorumlog.wire.codec.record_runs import find_run
from quorumlog.wire.codec.records import BatchHeader, read_header
from tests.support.sizes import examples, tries
from tests.support.wire.handmade_bytes import Header, batch, record, varint

SETTINGS = examples(200, database=None)
ITEMS_MAX = 1000
BASE_MS = 1_700_000_000_000
NUMBER_IS_NONE = "a number that takes more than {} bytes, or is too large"


class PlainReader:
    """Reads the records of a batch by the definition of their format."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, bytes_max: int = 5) -> int:
        written: int = 0
        for place in range(bytes_max):
            byte = self.data[self.at + place]
            written += (byte & 0x7F) * (1 << 7 * place)
            if byte < 0x80:
                if written >= (2**32 if bytes_max == 5 else 2**64):
                    break
                self.at += place + 1
                return written // 2 if written % 2 == 0 else -1 - written // 2
        raise CorruptBatch(NUMBER_IS_NONE.format(bytes_max))

    def record(self, index: int, headers_left: int) -> tuple[int, bool, int]:
        """Return (time delta, whether the key is null, number of headers)."""
        size = self.number()
        start = self.at
        self.at += 1
        time_delta = self.number(10)
        offset_delta = self.number()
        key_size = self.content(f"record {index} has a key of negative length")
        self.content(f"record {index} has a value of negative length")
        count = self.headers(headers_left)
        if self.data[start]:
            raise CorruptBatch(f"record {index} has attributes: {self.data[start]}")
        if offset_delta != index:
            raise CorruptBatch(f"record {index} has another offset delta")
        if self.at - start != size:
            raise CorruptBatch(f"record {index} does not have its declared length")
        return time_delta, key_size == -1, count

    def content(self, refusal: str) -> int:
        size = self.number()
        if size < -1:
            raise CorruptBatch(refusal)
        self.at += max(size, 0)
        return size

    def headers(self, headers_left: int) -> int:
        count = self.number()
        if count < 0:
            raise CorruptBatch("a negative number of headers")
        if 2 * count > len(self.data) - self.at:
            raise CorruptBatch(f"{count} headers in {len(self.data) - self.at} bytes")
        if count > headers_left:
            raise BatchTooLarge("too many headers of records in one batch")
        for _ in range(count):
            size = self.number()
            if size < 0:
                raise CorruptBatch("a header without a key")
            self.data[self.at : self.at + size].decode()
            self.at += size
            self.content("a header with a value of negative length")
        return count


def read_plainly(data: bytes, header: BatchHeader, items_max: int) -> RecordsSummary:
    count = header.record_count
    if 7 * count > len(data):
        raise CorruptBatch(f"{count} records in {len(data)} bytes")
    if count > items_max:
        raise BatchTooLarge(f"{count} records in one batch: at most {items_max}")
    reader = PlainReader(data)
    times, is_any_null, headers_left = [], False, items_max - count
    try:
        for index in range(count):
            time_delta, is_null, headers = reader.record(index, headers_left)
            times.append(header.base_timestamp + time_delta)
            is_any_null |= is_null
            headers_left -= headers
    except IndexError as error:
        raise CorruptBatch("the records end too early") from error
    except UnicodeDecodeError as error:
        raise CorruptBatch("the key of a header is no UTF-8") from error
    if reader.at != len(data):
        raise CorruptBatch(f"{len(data) - reader.at} bytes after the last record")
    if min(times) < -(2**63) or max(times) >= 2**63:
        raise CorruptBatch("the timestamp of a record does not fit 64 bits")
    return RecordsSummary(min(times), max(times), is_any_null)


def agree(body: bytes, count: int, items_max: int = ITEMS_MAX) -> bool:
    """Hold the pass against the plain reading; return whether the records are right."""
    header = read_header(batch(b"", count, base_timestamp=BASE_MS))
    try:
        expected: object = read_plainly(body, header, items_max)
    except (CorruptBatch, BatchTooLarge) as error:
        expected = (type(error), str(error))
    try:
        found: object = inspect_records(memoryview(body), header, items_max=items_max)
    except (CorruptBatch, BatchTooLarge) as error:
        found = (type(error), str(error))
    assert found == expected, body
    return isinstance(expected, RecordsSummary)


def alike(
    count: int,
    *,
    key: bytes | None = None,
    value: bytes | None = b"abc",
    times: tuple[int, ...] = (0,),
    headers: tuple[Header, ...] = (),
) -> bytes:
    return b"".join(
        record(index, times[index % len(times)], key, value, headers) for index in range(count)
    )


RUNS = {
    "without keys": alike(4),
    "with keys": alike(4, key=b"k1"),
    "with empty keys and values": alike(4, key=b"", value=b""),
    "of different times": alike(4, times=(0, 1, 63, 5)),
    "of times of two bytes": alike(4, key=b"k", times=(64, 8191, 100, 64)),
    "of times before the batch's": alike(4, times=(-1,)),
    "of sizes of two bytes": alike(3, value=b"v" * 60),
    "of values whose lengths take two bytes": alike(3, value=b"v" * 64, times=(300, 400)),
}
COUNTS = {name: 3 if "sizes" in name or "values whose" in name else 4 for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_these_are_runs(name: str) -> None:
    body, count = RUNS[name], COUNTS[name]
    run = find_run(memoryview(body), 0, 0, count)
    assert run is not None
    assert run[:2] == (count, len(body))
    assert agree(body, count)


@pytest.mark.parametrize("name", RUNS)
def test_every_value_of_every_byte_of_a_run(name: str) -> None:
    body, count = RUNS[name], COUNTS[name]
    right, step = 0, 4 // tries(4)
    for at in range(len(body)):
        if body[at : at + 2] == b"vv":  # inside of a value
            continue
        changed = bytearray(body)
        for value in range(at % step, 256, step):
            changed[at] = value
            right += agree(bytes(changed), count)
    assert right > 256 // step


def shortened_and_lengthened(body: bytes) -> Iterator[bytes]:
    for at in range(len(body) + 1):
        yield body[:at]
        yield body[:at] + body[at + 1 :]
        for byte in (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFF):
            yield body[:at] + bytes([byte]) + body[at:]


@pytest.mark.parametrize("name", RUNS)
def test_every_byte_too_few_or_too_many(name: str) -> None:
    for changed in shortened_and_lengthened(RUNS[name]):
        for count in (COUNTS[name] - 1, COUNTS[name], COUNTS[name] + 1):
            agree(changed, count)


LONG = alike(70, key=b"k")  # from record 64 on, offset deltas take two bytes


@pytest.mark.parametrize("bits", [0x01, 0x02, 0x40, 0x80, 0xFF])
def test_a_wrong_byte_behind_the_offsets_of_one_byte(bits: int) -> None:
    assert agree(LONG, 70)
    for at in range(len(alike(63, key=b"k")), len(LONG)):
        changed = bytearray(LONG)
        changed[at] ^= bits
        agree(bytes(changed), 70)


def test_runs_of_every_length() -> None:
    for count in (*range(1, 9), 63, 64, 65, 127, 128, 129, 200):
        for body in (alike(count), alike(count, times=tuple(range(count)))):
            assert agree(body, count)
            assert not agree(body + b"\0", count)
            assert not agree(body, count + 1)


def test_records_that_end_a_run() -> None:
    others = (
        record(20, 0, None, b"abcd"),
        record(20, 0, b"", b"abc"),
        record(20, 0, None, None),
        record(20, -5, None, b"abc"),
        record(20, 70, None, b"ab"),
        record(20, 9_000, None, b"a"),
        record(20, 2**40, None, b"a"),
        record(20, 0, None, b"a", ((b"", b""),)),
        record(20, 0, None, b"", ((b"", None),)),
    )
    for other in others:
        for before in (20, 1):  # that is out of turn, too
            behind = b"".join(record(index, 3, None, b"abc") for index in range(21, 40))
            agree(alike(before) + other + behind, 40)
            assert agree(alike(20) + other + behind, 40)


def test_headers_count_behind_a_run() -> None:
    tail = record(4, headers=((b"a", b""), (b"b", None)))
    assert agree(alike(4) + tail, 5, items_max=7)
    assert not agree(alike(4) + tail, 5, items_max=6)


def test_sizes_at_the_limits_of_a_run() -> None:
    for size in (63, 64, 4085, 4090, 4095, 4096, 8190, 8192):
        assert agree(alike(3, value=b"v" * size), 3)
        assert agree(alike(3, key=b"k" * size), 3)


def test_numbers_that_take_more_bytes_than_they_need() -> None:
    for numbers in (
        (b"\x80\0", b"\0", b"\x01"),
        (b"\0", b"\x80\0", b"\x01"),
        (b"\0", b"\0", b"\x81\0"),
        (b"\x80\x80\0", b"\0", b"\x01"),
        (b"\x80\x80\x80\x80\0", b"\0", b"\x01"),
    ):
        body = b"\0" + b"".join(numbers) + b"\x06abc\0"
        for size in (varint(len(body)), bytes([len(body) * 2 | 0x80, 0])):
            whole = size + body
            assert agree(whole, 1)
            agree(whole * 3, 3)
            agree(whole + alike(5)[len(record(0, 0, None, b"abc")) :], 5)


@pytest.mark.parametrize(
    "parts",
    [
        (b"\x11\0\0", b"\x01\x04ab\0"),  # an odd size is negative
        (b"\x12\0\x80\x80", b"\x04kk\0\0"),  # in truth, a time of three bytes
        (b"\x92\x01\0\0", b"\x82\x01" + b"k" * 64 + b"\x04ab\0"),  # and a key's length of two
        (b"\x12\1\0", b"\x01\x06abc\0"),  # attributes
        (b"\x12\0\0", b"\x03\x06abc\0"),  # a key of negative length
        (b"\x12\0\0", b"\x01\x03abc\0"),  # and a value
        (b"\x10\0\0", b"\x01\x06abc\0"),
        (b"\x14\0\0", b"\x01\x06abc\0\0"),
        (b"\x12\0\0", b"\x01\x06abc\1"),
    ],
)
def test_records_that_are_all_wrong_in_the_same_way(parts: tuple[bytes, bytes]) -> None:
    before, behind = parts
    for offsets in (range(8), range(1, 9), (0,) * 8):
        body = b"".join(before + varint(offset) + behind for offset in offsets)
        assert not agree(body, 8)


small = st.binary(max_size=3)
runs = st.fixed_dictionaries(
    {
        "length": st.integers(1, 90),
        "key": st.none() | small,
        "value": st.none() | small | st.binary(min_size=60, max_size=70),
        "times": st.sampled_from([(0,), (0, 1, 2), (60, 70), (0, -1), (8_000, 9_000), (2**40,)]),
        "headers": st.just(()) | st.tuples(st.tuples(st.just(b"h"), st.none() | small)),
    }
)


@SETTINGS
@given(st.lists(runs, min_size=1, max_size=4), st.data())
def test_mixtures_of_runs(mixture: list[dict[str, Any]], data: st.DataObject) -> None:
    records: list[bytes] = []
    for run in mixture:
        for _ in range(run["length"]):
            index = len(records)
            time = run["times"][index % len(run["times"])]
            records.append(record(index, time, run["key"], run["value"], run["headers"]))
    body = bytearray(b"".join(records))
    assert agree(bytes(body), len(records))
    at = data.draw(st.integers(0, len(body) - 1))
    cut = data.draw(st.integers(0, 2))
    body[at : at + cut] = data.draw(st.binary(max_size=2))
    agree(bytes(body), len(records))

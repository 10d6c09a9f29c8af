"""The one pass over a batch against the decoder that makes every record: on right and wrong bytes.

What passes, our client and others can read, and the summary is what they see. What the decoder
reads, in the form in which we would have written it, passes.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.errors import BatchTooLarge, CorruptBatch
from quorumlog.wire.codec.inspection import (
    RecordFacts,
    RecordsSummary,
    inspect_records,
    iterate_facts,
    unfold,
)
from quorumlog.wire.codec.records import HEADER_BYTES, Record, decode_batch, read_header
from tests.property.test_wire_records import batches, witnesses
from tests.support.sizes import examples
from tests.support.wire.handmade_bytes import batch, mended, record

SETTINGS = examples(150, database=None)
DECOMPRESSED_BYTES_MAX = 1 << 20
compressions = st.sampled_from(Compression)


def inspect(data: bytes) -> RecordsSummary:
    header = read_header(data)
    body = unfold(data, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    return inspect_records(body, header, items_max=100_000)


def decoded(data: bytes) -> list[Record] | None:
    try:
        return decode_batch(data, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    except CorruptBatch:
        return None


def handmade(records: list[Record], base_timestamp: int) -> bytes:
    return b"".join(
        record(
            one.offset,
            one.timestamp_ms - base_timestamp,
            one.key,
            one.value,
            tuple((name.encode(), value) for name, value in one.headers),
        )
        for one in records
    )


def judge(data: bytes) -> bool:
    """Hold the pass against the decoders; return whether the batch passed."""
    header = read_header(data)
    try:
        summary = inspect(data)
    except CorruptBatch:
        records = decoded(data)
        if records is not None and 0 < header.record_count == header.last_offset_delta + 1:
            body = unfold(data, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            in_turn = [one.offset for one in records] == list(range(len(records)))
            fit = all(-(2**63) <= one.timestamp_ms < 2**63 for one in records)
            is_ours = body == handmade(records, header.base_timestamp)
            assert not (in_turn and fit and is_ours), "a right batch was refused"
        return False
    records = decode_batch(data)
    own = data if not header.has_log_append_time else mended(clear_append_time(data))
    timestamps = [one.timestamp_ms for one in decode_batch(own)]
    assert [one.offset for one in records] == list(range(header.record_count))
    assert summary == (min(timestamps), max(timestamps), any(one.key is None for one in records))
    body = unfold(data, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    assert list(iterate_facts(body, header)) == [
        RecordFacts(time, one.key is not None)
        for time, one in zip(timestamps, records, strict=True)
    ]
    for module in witnesses(header.compression):
        theirs = module.DefaultRecordBatch(data)
        assert [(one.offset, one.key, one.value, list(one.headers)) for one in theirs] == [
            (one.offset, one.key, one.value, list(one.headers)) for one in records
        ]
    return True


def clear_append_time(data: bytes) -> bytearray:
    changed = bytearray(data)
    changed[22] &= ~0x08
    return changed


@SETTINGS
@given(batches(with_gaps=False), compressions)
def test_what_is_right_passes(records: list[Record], compression: Compression) -> None:
    base = records[0].timestamp_ms
    data = batch(
        handmade(records, base), len(records), compression=compression, base_timestamp=base
    )
    assert decode_batch(data) == records
    assert judge(data)


SMALL = handmade(
    [
        Record(0, 5, b"key", b"value", (("h", b"x"), ("i", None))),
        Record(1, 4, None, b"va" * 40),
        Record(2, 200, b"", None),
    ],
    5,
)


@pytest.mark.parametrize("compression", Compression)
def test_every_changed_byte_is_seen_or_harmless(compression: Compression) -> None:
    data = batch(SMALL, 3, compression=compression, base_timestamp=5)
    assert judge(data)
    for position in range(HEADER_BYTES, len(data)):
        for change in (0x01, 0x02, 0x10, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= change
            judge(mended(changed))


@pytest.mark.parametrize("compression", Compression)
def test_every_truncated_batch_is_refused(compression: Compression) -> None:
    data = batch(SMALL, 3, compression=compression, base_timestamp=5)
    for size in range(HEADER_BYTES, len(data)):
        assert not judge(mended(data[:size]))


@pytest.mark.parametrize("compression", Compression)
def test_bytes_after_the_records_are_refused(compression: Compression) -> None:
    data = batch(SMALL, 3, compression=compression, base_timestamp=5)
    for more in (b"\0", b"\xff" * 9, data[HEADER_BYTES:]):
        assert not judge(mended(data + more))


@SETTINGS
@given(batches(with_gaps=False), compressions, st.data())
def test_nonsense_in_the_midst_of_records(
    records: list[Record], compression: Compression, data: st.DataObject
) -> None:
    """Damaged before it is compressed, so that the damage is met by the pass."""
    base = records[0].timestamp_ms
    body = bytearray(handmade(records, base))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        cut = data.draw(st.integers(0, 3))
        body[at : at + cut] = data.draw(st.binary(max_size=3))
    count = data.draw(st.sampled_from([len(records)] * 3 + [1, 2, len(records) + 1]))
    judge(batch(bytes(body), count, compression=compression, base_timestamp=base))


@SETTINGS
@given(st.binary(max_size=200), st.integers(1, 4), st.integers(0, 7))
def test_random_bytes(body: bytes, count: int, attributes: int) -> None:
    judge(batch(body, count, attributes=attributes))


def test_the_judge_sees_a_right_batch_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> RecordsSummary:
        raise BatchTooLarge("planted")

    monkeypatch.setattr("tests.property.test_wire_inspection.inspect_records", refuse)
    with pytest.raises(AssertionError, match="a right batch was refused"):
        judge(batch(SMALL, 3, base_timestamp=5))

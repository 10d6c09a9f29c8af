"""The native lane and Python agree: on each batch, valid or changed, and on its checksum."""

from struct import pack_into
from typing import Any

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.partitions.core.admission import TopicLimits, admit, usual_headers
from quorumlog.native import lane
from quorumlog.settings.kinds import LONG_MAX
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import CRC_END, BatchHeader, Compression, Record, encode_batch
from tests.support.native import native, needs_native
from tests.support.sizes import examples

pytestmark = needs_native
NOW_MS = 1_700_000_000_000
AT = TopicPartition("orders", 0)
EXTREMES = [0, 1, -1, -2, 2**7, 2**14, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]
FIELDS = {  # of a header: (position, format)
    "base offset": (0, ">q"), "length": (8, ">i"), "epoch": (12, ">i"), "magic": (16, ">b"),
    "crc": (17, ">i"), "attributes": (21, ">h"), "last delta": (23, ">i"),
    "base timestamp": (27, ">q"), "max timestamp": (35, ">q"), "producer": (43, ">q"),
    "producer epoch": (51, ">h"), "sequence": (53, ">i"), "count": (57, ">i"),
}  # fmt: skip
BITS = {"b": 8, "h": 16, "i": 32, "q": 64}

CONTENTS = st.one_of(st.none(), st.binary(max_size=3), st.just(b"v" * 70), st.just(b"v" * 9000))
KEYS = st.sampled_from(["", "trace", "x" * 70, "h" * 130])
RECORDS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 3), st.sampled_from([-1, -(2**40), 200, 20_000, 2**31, 2**61])),
        CONTENTS,
        CONTENTS,
        st.lists(st.tuples(KEYS, CONTENTS), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=5,
)
WIDE = TopicLimits(
    max_message_bytes=2**20,
    timestamp_before_max_ms=LONG_MAX,
    timestamp_after_max_ms=LONG_MAX,
    is_compacted=False,
    has_append_time=False,
    is_internal=False,
)
LIMITS = st.builds(
    TopicLimits,
    max_message_bytes=st.sampled_from([2**20, 2**20, 2**20, 100]),
    timestamp_before_max_ms=st.sampled_from([LONG_MAX, LONG_MAX, 1000]),
    timestamp_after_max_ms=st.sampled_from([LONG_MAX, 3_600_000, 0]),
    is_compacted=st.booleans(),
    has_append_time=st.sampled_from([False, False, False, True]),
    is_internal=st.sampled_from([False, False, False, True]),
)
PRODUCERS = st.sampled_from(
    [
        {},
        {"producer_id": 5, "producer_epoch": 0, "base_sequence": 2**31 - 1},
        {"producer_id": 5, "producer_epoch": 1, "base_sequence": 0, "is_transactional": True},
        {"producer_id": 5, "producer_epoch": -1, "base_sequence": 0},
        {"is_transactional": True},
        {"is_control": True},
        {"compression": Compression.GZIP},
    ]
)
CHANGES = st.one_of(
    st.none(),
    st.tuples(st.just("byte"), st.integers(0, 2**16), st.integers(1, 255)),
    st.tuples(st.just("body"), st.integers(0, 2**16), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 2**16), st.booleans()),
    st.tuples(st.just("longer"), st.binary(min_size=1, max_size=9), st.booleans()),
    st.tuples(st.just("number"), st.integers(0, 2**16), st.integers(1, 11)),
    st.tuples(st.sampled_from([*FIELDS]), st.sampled_from(EXTREMES), st.just(0)),
)


def batch_of(records: Any, producer: Any) -> bytes:
    made = [Record(at, NOW_MS + delta, *more) for at, (delta, *more) in enumerate(records)]
    return encode_batch(made, **producer)


def changed(batch: bytes, change: Any) -> bytes:
    """Return the batch with a change, and its right checksum where the change is behind it."""
    if change is None:
        return batch
    kind, where, how = change
    new, is_sealed = bytearray(batch), True
    if kind in ("byte", "body"):
        start = 61 if kind == "body" else 0
        new[start + where % (len(new) - start)] ^= how
        is_sealed = kind == "body"
    elif kind in ("cut", "longer"):
        new = new[: where % len(new)] if kind == "cut" else new + where
        is_sealed = how
        if how and len(new) >= 61:
            pack_into(">i", new, 8, len(new) - 12)
    elif kind == "number":  # a number of many bytes in the place of one byte
        at = 61 + where % (len(new) - 61)
        new[at : at + 1] = b"\x80" * (how - 1) + new[at : at + 1]
        pack_into(">i", new, 8, len(new) - 12)
    else:
        at, code = FIELDS[kind]
        low = 2 ** (BITS[code[1]] - 1)
        pack_into(code, new, at, (where + low) % (2 * low) - low)
        is_sealed = kind != "crc"
    if is_sealed and len(new) >= 61:
        pack_into(">I", new, 17, crc32c(new[CRC_END:]))
    return bytes(new)


def judged_by_python(batch: bytes, limits: TopicLimits) -> Any:
    with native(is_on=False):
        return admit(batch, limits, NOW_MS, AT)


@examples(1500)
@given(RECORDS, PRODUCERS, LIMITS, CHANGES)
def test_the_lane_admits_exactly_the_plain_batches_that_python_admits_unchanged(
    records: Any, producer: Any, limits: TopicLimits, change: Any
) -> None:
    batch = changed(batch_of(records, producer), change)
    expected = judged_by_python(batch, limits)
    is_usual = (
        expected.error_code is ErrorCode.NONE
        and expected.records is batch
        and not limits.is_internal
        and not limits.has_append_time
        and not expected.header.attributes & 7
    )
    with native(is_on=True):
        found = usual_headers([batch], limits, NOW_MS)
        assert found == ([expected.header] if is_usual else [])
        assert admit(batch, limits, NOW_MS, AT) == expected
    assert [type(one) for one in found] == [type(expected.header)] * len(found)


@examples(100)
@given(
    st.lists(st.tuples(RECORDS, PRODUCERS, CHANGES), min_size=1, max_size=5),
    st.integers(0, 100_000),
)
def test_the_lane_stops_at_the_first_other_batch_or_after_enough_bytes(
    run: Any, bytes_max: int
) -> None:
    batches = [changed(batch_of(records, producer), more) for records, producer, more in run]
    size = 0
    expected: list[BatchHeader] = []
    with native(is_on=True) as functions:
        for batch in batches:
            alone = usual_headers([memoryview(batch)], WIDE, NOW_MS)
            if not alone or (expected and size >= bytes_max):
                break
            size += len(batch)
            expected += alone
        numbers = 2**20, -LONG_MAX, LONG_MAX, False, 250_000, bytes_max
        assert functions.admit(batches, BatchHeader, *numbers) == (expected)


def test_a_key_beyond_ascii_is_left_to_python() -> None:
    for key, count in (("ß", 0), ("ss", 1)):
        batch = batch_of([(0, None, None, ((key, b""),))], {})
        with native(is_on=True):
            assert len(usual_headers([batch], WIDE, NOW_MS)) == count
            assert admit(batch, WIDE, NOW_MS, AT).error_code is ErrorCode.NONE


@examples(200)
@given(st.binary(max_size=100), st.integers(0, 5000), st.integers(0, 255))
def test_both_checksums_are_those_of_the_library(start: bytes, more: int, byte: int) -> None:
    data = start + bytes([byte]) * more
    with native(is_on=True) as functions:
        assert functions.checksum(data, False) == functions.checksum(data, True) == crc32c(data)


def test_the_lane_is_off_from_a_turn_off_on() -> None:
    with native(is_on=True):
        why_not = lane.why_not
        assert lane.state == "on"
        try:
            lane.turn_off("a reason")
            assert (lane.functions, lane.state) == (None, "a reason")
        finally:
            lane.why_not = why_not

"""The bytes of a transaction marker, and markers that cannot be read."""

import pytest

from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import Record, decode_batch, encode_batch, read_header
from quorumlog.wire.codec.transaction_markers import (
    TransactionMarker,
    decode_marker,
    encode_marker,
    marked_headers,
)


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

"""Variable-length numbers, tagged fields and strings at the edges of their lengths."""

import pytest

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.messages.fetch import FetchRequest, ReplicaState
from quorumlog.wire.codec.messages.metadata import MetadataResponse
from quorumlog.wire.codec.schemas import decode_message, encode_message
from quorumlog.wire.codec.varint import (
    UVARINT_LIMIT,
    encode_uvarint,
    read_uvarint,
    skip_tagged_fields,
)


@pytest.mark.parametrize(
    "value", [0, 1, 127, 128, 16383, 16384, UVARINT_LIMIT, 2**32 - 1, 2**35 - 1]
)
def test_numbers_come_back(value: int) -> None:
    data = encode_uvarint(value)
    assert read_uvarint(memoryview(b"x" + data + b"y"), 1) == (value, 1 + len(data))


def test_a_length_of_six_bytes_is_malformed_even_if_it_is_small() -> None:
    with pytest.raises(MalformedFrame):
        read_uvarint(memoryview(b"\x81\x80\x80\x80\x80\x00"), 0)


def test_a_tagged_field_ends_in_the_frame() -> None:
    assert skip_tagged_fields(memoryview(b"\x01\x05\x02ab"), 0) == 5
    with pytest.raises(MalformedFrame):
        skip_tagged_fields(memoryview(b"\x01\x05\x03ab"), 0)


def test_a_tagged_field_has_the_size_it_says() -> None:
    state = ReplicaState(replica_id=1, replica_epoch=2)
    data = b"".join(encode_message(FetchRequest(replica_state=state), 15))
    assert data.endswith(b"\x01\x01\x0d" + (1).to_bytes(4) + (2).to_bytes(8) + b"\0")
    assert decode_message(FetchRequest, 15, data).replica_state == state
    for size in (12, 14):
        wrong = data[:-14] + bytes([size]) + data[-13:] + b"\0\0"
        with pytest.raises(MalformedFrame):
            decode_message(FetchRequest, 15, wrong)


@pytest.mark.parametrize("size", range(UVARINT_LIMIT - 3, UVARINT_LIMIT + 2))
def test_strings_around_the_end_of_the_table(size: int) -> None:
    message = MetadataResponse(cluster_id="x" * size)
    data = b"".join(encode_message(message, 12))
    assert decode_message(MetadataResponse, 12, data) == message


def test_a_string_is_as_long_as_an_int16_says_even_where_a_varint_counts() -> None:
    longest = MetadataResponse(cluster_id="x" * (2**15 - 1))
    data = b"".join(encode_message(longest, 12))
    assert decode_message(MetadataResponse, 12, data) == longest
    longer = b"".join(encode_message(MetadataResponse(cluster_id="x" * 2**15), 12))
    with pytest.raises(MalformedFrame, match="cluster_id: 32768 bytes"):
        decode_message(MetadataResponse, 12, longer)

"""Every version of every message is byte for byte what kio writes."""

import random

import pytest
from kio.index import load_request_schema, load_response_schema

from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.schemas import (
    decode_message,
    encode_message,
    request_class,
    response_class,
)
from tests.support.sizes import tries
from tests.support.wire.records_oracle import kio_bytes, random_message

SAMPLES = tries(4)


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_every_version_is_byte_for_byte_what_kio_writes(api_key: int) -> None:
    draw = random.Random(api_key)
    for version in APIS[api_key].versions:
        for message_class, kio_class in (
            (request_class(api_key), load_request_schema(api_key, version)),
            (response_class(api_key), load_response_schema(api_key, version)),
        ):
            for _ in range(SAMPLES):
                message = random_message(draw, message_class, version)
                expected = kio_bytes(message, kio_class)
                ours = b"".join(encode_message(message, version))
                assert ours == expected
                decoded = decode_message(message_class, version, expected)
                assert decoded == message
                assert b"".join(encode_message(decoded, version)) == expected

"""Streams of TLS, and of raw SASL tokens, through a forwarder: they pass unread and at once."""

from collections.abc import Callable
from struct import pack

import pytest

from quorumlog.chaos.faults.apis import kafka_api_name
from quorumlog.chaos.network.splitters import HttpSplitter, KafkaSplitter, Message, Splitter
from tests.support.chaos.kafka_frames import request


def fed(splitter: Splitter, parts: list[bytes]) -> tuple[bytes, list[Message]]:
    """Feed the parts; return the bytes that passed, and the messages in them."""
    pieces = [piece for part in parts for piece in splitter.feed(part)]
    passed = b"".join(piece.content for piece in pieces)
    return passed, [piece.message for piece in pieces if piece.message is not None]


# A hello of TLS, whose bytes would be a Fetch of 369 MB; later records follow.
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01" + bytes(40) + b"\x17\x03\x03\x00\x05abcde"


@pytest.mark.parametrize(
    "new",
    [
        lambda: KafkaSplitter(kafka_api_name),
        lambda: KafkaSplitter(None),
        lambda: HttpSplitter(is_request=True),
        lambda: HttpSplitter(is_request=False),
    ],
)
def test_no_message_is_read_in_tls_and_no_byte_of_it_waits(new: Callable[[], Splitter]) -> None:
    splitter = new()
    assert fed(splitter, [TLS[:20], TLS[20:]]) == (TLS, [])
    assert splitter.rest() == b""


def sasl(version: int) -> bytes:
    return pack(">ihhi", 8, 17, version, 1)


TOKENS = pack(">i", 1) + b"\1" + pack(">i", 0) + request(1, 5, b"a Fetch, or a token")


@pytest.mark.parametrize(
    ("stream", "messages"),
    [
        (sasl(0) + TOKENS, [Message("SaslHandshake", 1)]),
        (
            sasl(1) + request(36, 2, b"token") + request(1, 3),
            [Message("SaslHandshake", 1), Message("SaslAuthenticate", 2), Message("Fetch", 3)],
        ),
    ],
)
def test_raw_tokens_are_no_requests_and_those_in_frames_are(
    stream: bytes, messages: list[Message]
) -> None:
    for cut in range(len(stream) + 1):
        splitter = KafkaSplitter(kafka_api_name)
        passed, found = fed(splitter, [stream[:cut], stream[cut:]])
        assert passed + splitter.rest() == stream
        assert found == messages

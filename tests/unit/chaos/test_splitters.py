"""Streams are cut into messages at the same places, however their bytes arrive."""

from collections.abc import Callable
from importlib import import_module
from itertools import accumulate, pairwise
from pkgutil import iter_modules
from random import Random
from struct import pack

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.chaos.faults.apis import APIS, CONTROL, kafka_api_name
from quorumlog.chaos.network.splitters import HttpSplitter, KafkaSplitter, Message, Splitter
from quorumlog.metadata_quorum.io.rpc import RPCS
from quorumlog.wire.codec import messages


def kafka_request(key: int, correlation_id: int, body: bytes = b"") -> bytes:
    return pack(">ihhi", 8 + len(body), key, 12, correlation_id) + body


def kafka_reply(correlation_id: int, body: bytes = b"") -> bytes:
    return pack(">ii", 4 + len(body), correlation_id) + body


def rpc(name: str, body: bytes) -> bytes:
    head = f"POST /rpc/{name} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


KAFKA_REQUESTS = [
    kafka_request(1, 7, b"x" * 40),
    kafka_request(0, 8),
    kafka_request(999, -1, b"yy"),
]
CASES: dict[str, tuple[Callable[[], Splitter], list[bytes], list[Message]]] = {
    "requests of Kafka": (
        lambda: KafkaSplitter(kafka_api_name),
        KAFKA_REQUESTS,
        [Message("Fetch", 7), Message("Produce", 8), Message("999", -1)],
    ),
    "replies of Kafka": (
        lambda: KafkaSplitter(None),
        [kafka_reply(7, b"x" * 30), kafka_reply(8), kafka_reply(9, b"z")],
        [Message("", 7), Message("", 8), Message("", 9)],
    ),
    "requests of the control plane": (
        lambda: HttpSplitter(is_request=True),
        [rpc("Vote", b"\r\n\r\n!"), b"GET /readyz HTTP/1.1\r\n\r\n", rpc("Fetch", b"")],
        [Message("Vote", 1), Message("readyz", 2), Message("Fetch", 3)],
    ),
    "replies of the control plane": (
        lambda: HttpSplitter(is_request=False),
        [answer(b"abc"), b"HTTP/1.1 204 No Content\r\n\r\n", answer(b"")],
        [Message("", 1), Message("", 2), Message("", 3)],
    ),
}


def fed(splitter: Splitter, parts: list[bytes]) -> tuple[bytes, dict[int, Message]]:
    """Feed the parts; return what passed, and which message begins where."""
    passed, begins = b"", {}
    for part in parts:
        for piece in splitter.feed(part):
            if piece.message is not None:
                begins[len(passed)] = piece.message
            passed += bytes(piece.content)
    return passed, begins


@pytest.mark.parametrize("case", CASES)
def test_every_split_of_the_bytes_gives_the_same_messages(case: str) -> None:
    new, frames, expected_messages = CASES[case]
    stream = b"".join(frames)
    starts = [0, *accumulate(len(frame) for frame in frames)][:-1]
    expected = (stream, dict(zip(starts, expected_messages, strict=True)))
    for cut in range(len(stream) + 1):
        assert fed(new(), [stream[:cut], stream[cut:]]) == expected, cut
    assert fed(new(), [stream[place : place + 1] for place in range(len(stream))]) == expected
    rng = Random(1)
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(stream)), 4))
        parts = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
        assert fed(new(), parts) == expected, cuts


@pytest.mark.parametrize(
    ("new", "stream"),
    [
        (lambda: KafkaSplitter(kafka_api_name), pack(">i", -5) + b"not Kafka at all"),
        (lambda: KafkaSplitter(None), b"HTTP/1.1 400 Bad Request\r\n\r\n" + pack(">i", 2) * 9),
        (lambda: HttpSplitter(is_request=True), b"x" * 70_000),
        (lambda: HttpSplitter(is_request=False), b"HTTP/1.1 200 OK\r\n\r\nuntil the end"),
        (
            lambda: HttpSplitter(is_request=True),
            b"GET /presence?node_id=1 HTTP/1.1\r\nUpgrade: websocket\r\n\r\n\x81\x05hello",
        ),
    ],
)
def test_what_is_no_message_passes_as_it_is(new: Callable[[], Splitter], stream: bytes) -> None:
    for size in (1, 7, len(stream)):
        splitter = new()
        parts = [stream[place : place + size] for place in range(0, len(stream), size)]
        passed, _ = fed(splitter, parts)
        assert passed + splitter.rest() == stream


def test_the_names_are_those_of_the_protocols() -> None:
    assert set(CONTROL) == set(RPCS)
    modules = [
        import_module(f"{messages.__name__}.{one.name}") for one in iter_modules(messages.__path__)
    ]
    of_kafka = {
        one.API_KEY: name.removesuffix("Request")
        for module in modules
        for name, one in vars(module).items()
        if name.endswith("Request") and hasattr(one, "API_KEY")
    }
    named = {key: kafka_api_name(key) for key in range(100) if not kafka_api_name(key).isdigit()}
    assert named.items() <= of_kafka.items()
    assert all(APIS[name].plane == "kafka" for name in named.values())
    assert {*HANDLERS} <= named.keys()

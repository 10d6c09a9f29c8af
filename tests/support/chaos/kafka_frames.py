"""Requests of Kafka and their replies, as bytes."""

from struct import pack

PRODUCE, FETCH, METADATA = 0, 1, 3


def request(key: int, correlation_id: int, body: bytes = b"") -> bytes:
    return pack(">ihhi", 8 + len(body), key, 3, correlation_id) + body


def reply(correlation_id: int, body: bytes = b"") -> bytes:
    return pack(">ii", 4 + len(body), correlation_id) + body

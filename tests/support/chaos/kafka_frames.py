"""Requests of Kafka and their replies, as bytes."""

from struct import pack
from typing import Any

from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.schemas import decode_response, encode_request

PRODUCE, FETCH, METADATA = 0, 1, 3


def request(key: int, correlation_id: int, body: bytes = b"") -> bytes:
    return pack(">ihhi", 8 + len(body), key, 3, correlation_id) + body


def reply(correlation_id: int, body: bytes = b"") -> bytes:
    return pack(">ii", 4 + len(body), correlation_id) + body


def produce_request(correlation_id: int) -> bytes:
    """Return a Produce of one record, which can be decoded."""
    message = ProduceRequest(
        acks=1,
        topic_data=[
            TopicProduceData(
                name="orders", partition_data=[PartitionProduceData(index=0, records=b"record")]
            )
        ],
    )
    chunks = encode_request(message, api_version=3, correlation_id=correlation_id, client_id="c")
    return b"".join(chunks)


def produce_errors(frame: bytes) -> list[int]:
    """Return the errors in a response to it, a frame with its length."""
    response: Any = decode_response(PRODUCE, 3, frame[4:])[1]
    return [one.error_code for topic in response.responses for one in topic.partition_responses]

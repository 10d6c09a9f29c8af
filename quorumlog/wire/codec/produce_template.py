"""Produce requests of one shape: all bytes but the correlation id and the records are alike.

A producer sends thousands of such requests for a partition. A template compares the bytes instead
of decoding them, and its responses are the bytes of one response with other numbers.
"""

from struct import Struct as Packer
from typing import Final, NamedTuple

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Buffer, Received
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader, encode_request, encode_response
from quorumlog.wire.codec.varint import read_uvarint

TEMPLATES_SINCE: Final = 7  # the version of Produce: zstd is allowed, responses have a log start
ACKS: Final = (-1, 0, 1)
_START: Final = Packer(">i4si")  # the frame's length, API and version, correlation id
_INT32: Final = Packer(">i")
_TAGS: Final = b"\0\0\0"  # behind the records, if flexible: of partition, topic and request
_NUMBERS: Final = 24  # bytes: base offset, append time and log start of a response


class TemplateMatch(NamedTuple):
    """A frame that has matched: its variable parts, and the position behind it."""

    correlation_id: int
    records: memoryview
    stop: int


class ProduceTemplate:
    """The requests with the bytes of `header` and `request`, and their responses without error.

    `match` finds exactly those frames that `decode_request` decodes to this request with other
    records. The request has one partition; `topic_name` or `topic_id` names its topic.
    """

    __slots__ = (
        "_api", "_behind", "_middle", "_pack", "_response_size", "acks", "head", "header",
        "is_flexible", "partition", "timeout_ms", "topic_id", "topic_name", "transactional_id",
    )  # fmt: skip

    def __init__(self, header: RequestHeader, request: ProduceRequest) -> None:
        (topic,) = request.topic_data
        (data,) = topic.partition_data
        self.header: Final = header
        self.acks: Final = request.acks
        self.timeout_ms: Final = request.timeout_ms
        self.transactional_id: Final = request.transactional_id
        self.topic_name: Final = topic.name
        self.topic_id: Final = topic.topic_id
        self.partition: Final = data.index
        self.is_flexible: Final = header.api_version >= ProduceRequest.FLEXIBLE_SINCE
        start = _encoded_start(header, request, topic, data)
        self._api: Final = start[_INT32.size : 2 * _INT32.size]
        self.head: Final = start[_START.size :]
        without, filled = (_response(header, topic, data, number) for number in (0, -1))
        numbers_at = _first_difference(without, filled)
        self._response_size: Final = without[: _INT32.size]
        self._middle: Final = without[2 * _INT32.size : numbers_at]
        self._behind: Final = without[numbers_at + _NUMBERS :]
        self._pack: Final = Packer(
            f">{_INT32.size}si{len(self._middle)}sqqq{len(self._behind)}s"
        ).pack

    def match(self, received: Received, start: int, end: int) -> TemplateMatch | None:
        """Match the frame at received[start:end), its length included.

        None: it is not whole, or has other bytes.
        """
        buffer, view = received
        position = start + _START.size
        if position > end:
            return None
        size, api, correlation_id = _START.unpack_from(buffer, start)
        stop = start + _INT32.size + size
        if stop > end or api != self._api or not buffer.startswith(self.head, position):
            return None
        position += len(self.head)
        records_end = stop
        if self.is_flexible:
            records_end -= len(_TAGS)
            length, position = _compact_length(buffer, position)
        else:
            length, position = _length(buffer, position)
        is_exact = length >= 0 and position + length == records_end
        if not is_exact or (self.is_flexible and not buffer.startswith(_TAGS, records_end)):
            return None
        return TemplateMatch(correlation_id, view[position:records_end], stop)

    def response(
        self, correlation_id: int, base_offset: int, append_time_ms: int, log_start_offset: int
    ) -> bytes:
        """Return the frame of the response to an appended batch, as `encode_response` does."""
        return self._pack(
            self._response_size,
            correlation_id,
            self._middle,
            base_offset,
            append_time_ms,
            log_start_offset,
            self._behind,
        )


def _compact_length(buffer: bytearray, position: int) -> tuple[int, int]:
    """Return the length of the records and where they begin; -1 if there is none."""
    try:
        value, position = read_uvarint(buffer, position)
    except (IndexError, MalformedFrame):
        return -1, position
    return value - 1, position


def _length(buffer: bytearray, position: int) -> tuple[int, int]:
    start = position + _INT32.size
    return int.from_bytes(buffer[position:start], "big", signed=True), start


def template_of(
    frame: memoryview, header: RequestHeader, request: ProduceRequest
) -> ProduceTemplate | None:
    """Return the template of a decoded frame.

    None: it has invalid acks, not one partition with records, or not the shortest encoding.
    """
    if header.api_version < TEMPLATES_SINCE or request.acks not in ACKS:
        return None
    if len(request.topic_data) != 1:
        return None
    (topic,) = request.topic_data
    if len(topic.partition_data) != 1 or not isinstance(topic.partition_data[0].records, Buffer):
        return None
    template = ProduceTemplate(header, request)
    framed = bytearray(_INT32.pack(len(frame)))
    framed += frame
    received = framed, memoryview(framed)
    return None if template.match(received, 0, len(framed)) is None else template


def _encoded_start(
    header: RequestHeader,
    request: ProduceRequest,
    topic: TopicProduceData,
    data: PartitionProduceData,
) -> bytes:
    """Return the bytes of the frame before the length of its records."""
    empty = TopicProduceData(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_data=[PartitionProduceData(index=data.index, records=b"")],
    )
    chunks = encode_request(
        ProduceRequest(
            transactional_id=request.transactional_id,
            acks=request.acks,
            timeout_ms=request.timeout_ms,
            topic_data=[empty],
        ),
        api_version=header.api_version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
    )
    is_flexible = header.api_version >= ProduceRequest.FLEXIBLE_SINCE
    return b"".join(chunks)[: -1 - len(_TAGS) if is_flexible else -_INT32.size]


def _first_difference(one: bytes, other: bytes) -> int:
    return next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)


def _response(
    header: RequestHeader, topic: TopicProduceData, data: PartitionProduceData, number: int
) -> bytes:
    slot = PartitionProduceResponse(
        index=data.index, base_offset=number, log_append_time_ms=number, log_start_offset=number
    )
    named = TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=[slot]
    )
    return b"".join(encode_response(header, ProduceResponse(responses=[named])))

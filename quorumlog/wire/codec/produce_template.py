"""Produce requests of one shape: all bytes but the correlation id and the records are alike.

A producer sends thousands of such requests for a partition. A template compares the bytes instead
of decoding them, and its responses are the bytes of one response with other numbers.
"""

from collections.abc import Sequence
from struct import Struct as Packer
from typing import Final, cast

from quorumlog.native import lane
from quorumlog.wire.codec.identifiers import TopicPartition
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
from quorumlog.wire.codec.varint import encode_uvarint

TEMPLATES_SINCE: Final = 7  # the version of Produce: zstd is allowed, responses have a log start
UVARINT_BYTES_MAX: Final = 5
ACKS: Final = (-1, 0, 1)
_START: Final = Packer(">i4si")  # the frame's length, API and version, correlation id
_INT32: Final = Packer(">i")
_TAGS: Final = b"\0\0\0"  # behind the records, if flexible: of partition, topic and request
_NUMBER: Final = -2  # no name has its bytes, which are no UTF-8
_NUMBERS: Final = Packer(">qqq")  # the base offset, append time and log start of a response


TemplateMatch = tuple[int, memoryview, int]
"""A frame that has matched: its correlation id, its records, and the position behind it."""


class ProduceTemplate:
    """The requests with the bytes of `header` and `request`, and their responses without error.

    `match` finds exactly those frames that `decode_request` decodes to this request with other
    records. The request has one partition, `at`; without a topic's name it has a `topic_id`.
    """

    __slots__ = (
        "_api", "_behind_records", "_numbers_at", "_prefix", "_response", "_size", "acks", "at",
        "head", "header", "timeout_ms", "topic_id", "transactional_id",
    )  # fmt: skip

    def __init__(self, header: RequestHeader, request: ProduceRequest, frame: bytes) -> None:
        """`frame`: the request with its length, in the shortest encoding."""
        (topic,) = request.topic_data
        (data,) = topic.partition_data
        self.header: Final = header
        self.acks: Final = request.acks
        self.timeout_ms: Final = request.timeout_ms
        self.transactional_id: Final = request.transactional_id
        self.topic_id: Final = topic.topic_id
        self.at: Final = TopicPartition(topic.name, data.index)
        is_flexible = header.api_version >= ProduceRequest.FLEXIBLE_SINCE
        self._behind_records: Final = _TAGS if is_flexible else b""
        size = len(data.records or b"")
        length_size = len(encode_uvarint(size + 1)) if is_flexible else _INT32.size
        self._api: Final = frame[_INT32.size : 2 * _INT32.size]
        self.head: Final = frame[_START.size : -length_size - size - len(self._behind_records)]
        self._size = -1  # of the last frame, and the bytes of frames of that size
        self._prefix: bytes | None = None
        self._response: Final = _response(header, topic, data)
        self._numbers_at: Final = self._response.index(_NUMBERS.pack(_NUMBER, _NUMBER, _NUMBER))

    def match_run(
        self, received: Received, start: int, end: int, count_max: int, frame_max_bytes: int
    ) -> list[TemplateMatch]:
        """Match the leading frames of received[start:end): at most `count_max` of this size."""
        functions = lane.functions
        if functions is not None:
            prefix = self._api, self.head, self._behind_records
            found = functions.match_run(
                received[1], start, end, *prefix, count_max, frame_max_bytes
            )
            return cast(list[TemplateMatch], found)
        run: list[TemplateMatch] = []
        while start < end and len(run) < count_max:
            found = self.match(received, start, end)
            if found is None or found[-1] - start > _INT32.size + frame_max_bytes:
                break
            run.append(found)
            start = found[-1]
        return run

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
        if size < 0 or stop > end or api != self._api:
            return None
        if size != self._size:  # requests of one size come one after the other
            self._size, self._prefix = size, self._prefix_of(size)
        prefix, records_end = self._prefix, stop - len(self._behind_records)
        if (
            prefix is None
            or not buffer.startswith(prefix, position)
            or not buffer.startswith(self._behind_records, records_end)
        ):
            return None
        position += len(prefix)
        if position > records_end:
            return None
        return correlation_id, view[position:records_end], stop

    def _prefix_of(self, size: int) -> bytes | None:
        """Return the bytes between correlation id and records in a frame of `size` bytes.

        None: no number of records bytes gives this size with the shortest encoding.
        """
        left = size + _INT32.size - _START.size - len(self.head) - len(self._behind_records)
        if left < 1:  # for the length of the records
            return None
        if not self._behind_records:
            return self.head + _INT32.pack(left - _INT32.size)
        for length_bytes in range(1, min(left, UVARINT_BYTES_MAX) + 1):
            encoded = encode_uvarint(left - length_bytes + 1)
            if len(encoded) == length_bytes:
                return self.head + encoded
        return None

    def responses(
        self,
        correlation_ids: Sequence[int],
        base_offsets: Sequence[int],
        append_time_ms: int,
        log_start_offset: int,
    ) -> list[Buffer]:
        """Return the frames of the responses to appended batches, as `encode_response` does.

        There are none with acks=0, nor for correlation ids without a base offset.
        """
        if self.acks == 0:
            return []
        response, numbers_at, functions = self._response, self._numbers_at, lane.functions
        if functions is not None:
            pairs, numbers = (correlation_ids, base_offsets), (append_time_ms, log_start_offset)
            return [functions.responses(response, numbers_at, *pairs, *numbers)]
        frames = bytearray(response * len(base_offsets))
        for start, correlation_id, base_offset in zip(
            range(0, len(frames), len(response)), correlation_ids, base_offsets, strict=False
        ):
            _INT32.pack_into(frames, start + _INT32.size, correlation_id)
            at = start + numbers_at
            _NUMBERS.pack_into(frames, at, base_offset, append_time_ms, log_start_offset)
        return [frames]


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
    chunks = encode_request(
        request,
        api_version=header.api_version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
    )
    framed = b"".join(chunks)
    return ProduceTemplate(header, request, framed) if framed[_INT32.size :] == frame else None


def _response(header: RequestHeader, topic: TopicProduceData, data: PartitionProduceData) -> bytes:
    """Return the frame of a response whose numbers are _NUMBERS."""
    slot = PartitionProduceResponse(
        index=data.index, base_offset=_NUMBER, log_append_time_ms=_NUMBER, log_start_offset=_NUMBER
    )
    named = TopicProduceResponse(
        name=topic.name, topic_id=topic.topic_id, partition_responses=[slot]
    )
    return b"".join(encode_response(header, ProduceResponse(responses=[named])))

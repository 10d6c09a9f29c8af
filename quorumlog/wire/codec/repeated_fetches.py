"""Recognizes a Fetch request that repeats the last request of its connection but for some numbers.

The numbers are the correlation id, the session epoch, and, of each partition, the fetch offset,
the last fetched epoch and the log start offset. All other bytes are compared, not decoded. Every
frame decodes as by `decode_request`: a property test compares them. Source: KIP-227.
"""

from struct import Struct as Packer
from typing import Any, Final

from quorumlog.wire.codec.message import Request
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.schemas import RequestHeader, decode_request

SINCE_VERSION: Final = 15  # since then the replica's id is behind all that differs
_API_KEY: Final = FetchRequest.API_KEY.to_bytes(2, "big")
_FRAME_BYTES_MAX: Final = 4096  # a larger one names many partitions: seldom the same ones again
_HEADER_BYTES: Final = 10  # up to the client id
_BEFORE_EPOCH: Final = 17  # from the header's end to the session epoch
_EPOCH_BYTES: Final = 4
_TOPIC_ID_BYTES: Final = 16
_BEFORE_NUMBERS: Final = 8  # a partition's index, and the leader epoch
_NUMBERS_BYTES: Final = 20
_PARTITION_BYTES: Final = 33  # then: the maximum of bytes, and the count of tagged fields


class FetchDecoder:
    """Decodes the requests of one connection.

    A repeated request is the *same* object as the one before it, with other numbers: keep none
    beyond the next call.
    """

    __slots__ = ("_compared", "_frame", "_header", "_partitions", "_request", "_unpack")

    def __init__(self) -> None:
        self._frame = b""  # of the last Fetch, if it may be repeated
        self._unpack: Any = None  # made when a frame of the same size follows
        self._compared: tuple[bytes, ...] = ()
        self._partitions: list[FetchPartition] = []
        self._header: RequestHeader
        self._request: FetchRequest

    def decode(self, frame: memoryview) -> tuple[RequestHeader, Request[Any]]:
        """Return the header and the request; raises what `decode_request` raises."""
        if len(frame) == len(self._frame) and frame[:2] == _API_KEY and self._repeats(frame):
            return self._header, self._request
        header, request = decode_request(frame)
        if type(request) is FetchRequest:
            is_small = len(frame) <= _FRAME_BYTES_MAX
            self._frame = bytes(frame) if is_small and header.api_version >= SINCE_VERSION else b""
            self._header, self._request, self._unpack = header, request, None
        return header, request

    def _repeats(self, frame: memoryview) -> bool:
        """Read the numbers of a repeated request; False: it differs in other bytes, too."""
        if self._unpack is None and not self._learn():
            self._frame = b""
            return False
        values = self._unpack(frame)
        start, correlation_id, before_epoch, session_epoch = values[:4]
        if (start, before_epoch, *values[4::4]) != self._compared:
            return False
        self._header = self._header._replace(correlation_id=correlation_id)
        self._request.session_epoch = session_epoch
        at = 5
        for partition in self._partitions:
            (partition.fetch_offset, partition.last_fetched_epoch, partition.log_start_offset) = (
                values[at : at + 3]
            )
            at += 4
        return True

    def _learn(self) -> bool:
        """Find the numbers in the last frame; False: its bytes before them are not the usual."""
        frame, topics = self._frame, self._request.topics
        body = _HEADER_BYTES + len((self._header.client_id or "").encode()) + 1
        epoch_at = body + _BEFORE_EPOCH
        starts = _starts_of_numbers(frame, epoch_at + _EPOCH_BYTES, topics)
        if frame[body - 1] or starts is None:
            return False
        layout, last = f">4si{epoch_at - 8}si", epoch_at + _EPOCH_BYTES
        for start in starts:
            layout += f"{start - last}sqiq"
            last = start + _NUMBERS_BYTES
        self._unpack = Packer(f"{layout}{len(frame) - last}s").unpack
        values = self._unpack(frame)
        self._compared = (values[0], values[2], *values[4::4])
        self._partitions = [one for topic in topics for one in topic.partitions]
        return True


def _starts_of_numbers(frame: bytes, at: int, topics: list[FetchTopic]) -> list[int] | None:
    """Return where the numbers of each partition start; `at`: where the topics do.

    None: a count takes several bytes, or a topic or partition has tagged fields.
    """
    starts: list[int] = []
    if frame[at] != len(topics) + 1:
        return None
    at += 1
    for topic in topics:
        at += _TOPIC_ID_BYTES
        if frame[at] != len(topic.partitions) + 1:
            return None
        at += 1
        for _ in topic.partitions:
            starts.append(at + _BEFORE_NUMBERS)
            at += _PARTITION_BYTES
            if frame[at - 1]:
                return None
        if frame[at]:
            return None
        at += 1
    return starts

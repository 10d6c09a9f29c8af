"""Fetch requests that repeat the last request of their connection but for some numbers.

The numbers are the correlation id, the session epoch, and, of each partition, the fetch offset,
the last fetched epoch and the log start offset. All other bytes are compared, not decoded, or
copied, not encoded. The frames are those of `decode_request` and `encode_request`: a property test
compares them. Source: KIP-227.
"""

from collections.abc import Iterable, Sequence
from struct import Struct as Packer
from typing import Any, Final

from quorumlog.wire.codec.message import Buffer, EncodedRequest, Request
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader, decode_request, encode_whole_request

SINCE_VERSION: Final = 15  # since then the replica's id is behind all that differs
_API_KEY: Final = FetchRequest.API_KEY.to_bytes(2, "big")
_FRAME_BYTES_MAX: Final = 4096  # a larger one names many partitions: seldom the same ones again
_PAUSE_MAX: Final = 63  # frames that are decoded between two comparisons
_LENGTH: Final = Packer(">i")
_new_tuple: Final = tuple.__new__  # the class of a NamedTuple costs three times as much
_HEADER_BYTES: Final = 10  # up to the client id
_BEFORE_EPOCH: Final = 17  # from the header's end to the session epoch
_EPOCH_BYTES: Final = 4
_TOPIC_ID_BYTES: Final = 16
_BEFORE_NUMBERS: Final = 8  # a partition's index, and the leader epoch
_NUMBERS: Final = 3  # of a partition
_NUMBERS_BYTES: Final = 20
_VALUES_OF_ONE: Final = 9  # in a frame with one partition
_PARTITION_BYTES: Final = 33  # then: the maximum of bytes, and the count of tagged fields


class FetchTemplate:
    """The bytes of a frame (without its length) between the numbers of a repeated fetch."""

    __slots__ = ("_between", "_length", "_packer")

    def __init__(self, packer: Packer, frame: bytes) -> None:
        """`packer` splits the frame: four parts, then, of each partition, its numbers and bytes."""
        self._packer, self._length = packer, _LENGTH.pack(packer.size)
        start, _, before_epoch, _, *rest = packer.unpack(frame)
        self._between: tuple[bytes, ...] = (start, before_epoch, *rest[:: _NUMBERS + 1])

    @classmethod
    def of(
        cls, frame: bytes, client_id: str | None, topics: Sequence[FetchTopic]
    ) -> "FetchTemplate | None":
        """Return the template of a Fetch of SINCE_VERSION or later that names these topics.

        None: a count takes several bytes, or a topic or partition has tagged fields.
        """
        body = _HEADER_BYTES + len((client_id or "").encode()) + 1
        epoch_at = body + _BEFORE_EPOCH
        starts = _starts_of_numbers(frame, epoch_at + _EPOCH_BYTES, topics)
        if frame[body - 1] or starts is None:
            return None
        layout, last = f">4si{epoch_at - 8}si", epoch_at + _EPOCH_BYTES
        for start in starts:
            layout += f"{start - last}sqiq"
            last = start + _NUMBERS_BYTES
        return cls(Packer(f"{layout}{len(frame) - last}s"), frame)

    def read(
        self, frame: Buffer, request: FetchRequest, partitions: Iterable[FetchPartition]
    ) -> int | None:
        """Read the numbers into a request; return the correlation id; None: other bytes differ."""
        values = self._packer.unpack(frame)
        if len(values) == _VALUES_OF_ONE:
            start, correlation_id, before_epoch, session_epoch, first, *numbers, last = values
            if (start, before_epoch, first, last) != self._between:
                return None
            request.session_epoch, (one,) = session_epoch, partitions
            one.fetch_offset, one.last_fetched_epoch, one.log_start_offset = numbers
            return correlation_id  # type: ignore[no-any-return]
        start, correlation_id, before_epoch, session_epoch, *rest = values
        if (start, before_epoch, *rest[:: _NUMBERS + 1]) != self._between:
            return None
        request.session_epoch, at = session_epoch, 1
        for one in partitions:
            one.fetch_offset, one.last_fetched_epoch, one.log_start_offset = rest[at : at + 3]
            at += _NUMBERS + 1
        return correlation_id  # type: ignore[no-any-return]

    def frame(
        self, correlation_id: int, session_epoch: int, partitions: Sequence[FetchPartition]
    ) -> bytes:
        """Return the frame, with its length, that has the numbers of these partitions."""
        start, before_epoch, first, *between = self._between
        if len(between) == 1:
            one, behind = partitions[0], between[0]
            return self._length + self._packer.pack(
                start,
                correlation_id,
                before_epoch,
                session_epoch,
                first,
                one.fetch_offset,
                one.last_fetched_epoch,
                one.log_start_offset,
                behind,
            )
        values: list[Any] = [start, correlation_id, before_epoch, session_epoch, first]
        for one, behind in zip(partitions, between, strict=True):
            values += (one.fetch_offset, one.last_fetched_epoch, one.log_start_offset, behind)
        return self._length + self._packer.pack(*values)


class RepeatableFetch(FetchRequest, EncodedRequest[FetchResponse]):
    """A FetchRequest to be sent several times, with other numbers each time.

    The second frame for a version and a client id makes the template of the later ones.
    """

    __slots__ = ("_encoded_for", "_partitions", "_template")

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self._partitions = [one for topic in self.topics for one in topic.partitions]
        self._encoded_for: tuple[int, str | None] | None = None
        self._template: FetchTemplate | None = None

    def renumber(self, session_epoch: int, positions: Iterable[Sequence[int]]) -> bool:
        """Set the session epoch, and of each partition offset, last fetched epoch, log start.

        A position begins with the leader epoch. False: it is another; the request is then void.
        """
        self.session_epoch = session_epoch
        if len(self._partitions) == 1:
            ((leader_epoch, *numbers),), one = positions, self._partitions[0]
            one.fetch_offset, one.last_fetched_epoch, one.log_start_offset = numbers
            return leader_epoch == one.current_leader_epoch
        for one, position in zip(self._partitions, positions, strict=True):
            leader_epoch, one.fetch_offset, one.last_fetched_epoch, one.log_start_offset = position
            if leader_epoch != one.current_leader_epoch:
                return False
        return True

    def frame(self, api_version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
        """Return the frame with its length."""
        template, encoded_for = self._template, (api_version, client_id)
        if template is None or self._encoded_for != encoded_for:
            chunks = encode_whole_request(self, api_version, correlation_id, client_id)
            self._template = None
            if self._encoded_for == encoded_for and api_version >= SINCE_VERSION:
                frame = b"".join(chunks)[_LENGTH.size :]
                self._template = FetchTemplate.of(frame, client_id, self.topics)
            self._encoded_for = encoded_for
            return chunks
        return [template.frame(correlation_id, self.session_epoch, self._partitions)]


class FetchDecoder:
    """Decodes the requests of one connection.

    A repeated request is the *same* object as the one before it, with other numbers: keep none
    beyond the next call. After each frame of the same size that differs in other bytes, more frames
    are decoded before the next comparison: fetches of changing partitions are not compared in vain.
    """

    __slots__ = ("_frame", "_header", "_partitions", "_pause", "_request", "_template", "_to_pass")

    def __init__(self) -> None:
        self._frame = b""  # of the last Fetch, if it may be repeated
        self._template: FetchTemplate | None = None  # made for a frame of the same size
        self._partitions: list[FetchPartition] = []
        self._pause = self._to_pass = 0  # frames to be decoded after the next difference; now
        self._header: RequestHeader
        self._request: FetchRequest

    def decode(self, frame: memoryview) -> tuple[RequestHeader, Request[Any]]:
        """Return the header and the request. Raises the errors of `decode_request`."""
        if len(frame) == len(self._frame) and frame[:2] == _API_KEY:
            if self._repeats(frame):
                self._pause = 0
                return self._header, self._request
            self._pause = min(2 * self._pause + 1, _PAUSE_MAX)
            self._to_pass = self._pause
        header, request = decode_request(frame)
        if type(request) is FetchRequest:
            self._frame, self._template = b"", None
            if self._to_pass:
                self._to_pass -= 1
            elif len(frame) <= _FRAME_BYTES_MAX and header.api_version >= SINCE_VERSION:
                self._frame, self._header, self._request = bytes(frame), header, request
        return header, request

    def _repeats(self, frame: memoryview) -> bool:
        """Read the numbers of a repeated request; False: it differs in other bytes, too."""
        template, request = self._template, self._request
        if template is None:
            template = FetchTemplate.of(self._frame, self._header.client_id, request.topics)
            if template is None:
                return False
            self._template = template
            self._partitions = [one for topic in request.topics for one in topic.partitions]
        correlation_id = template.read(frame, request, self._partitions)
        if correlation_id is None:
            return False
        api_key, api_version, _, client_id = self._header
        header = (api_key, api_version, correlation_id, client_id)
        self._header = _new_tuple(RequestHeader, header)
        return True


def _starts_of_numbers(frame: bytes, at: int, topics: Sequence[FetchTopic]) -> list[int] | None:
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

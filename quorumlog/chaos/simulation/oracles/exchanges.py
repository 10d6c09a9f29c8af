"""Requests of clients and the responses of brokers, read from the bytes of a connection."""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct as Packer
from typing import Any, Final

from quorumlog.wire.codec.schemas import RequestHeader, decode_request, decode_response

FETCH: Final = 1
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS: Final = 24
ADD_OFFSETS: Final = 25
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28
CONSUMER_HEARTBEAT: Final = 68
READ_APIS: Final = frozenset(
    {OFFSET_COMMIT, OFFSET_FETCH, LEAVE_GROUP, SYNC_GROUP, INIT_PRODUCER_ID, ADD_PARTITIONS}
    | {ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, CONSUMER_HEARTBEAT}
)
"""API keys of the requests that an oracle reads, beside Fetch; the bytes of others are skipped."""

RUDE: Final = "rude"
"""The client id of requests that must be refused."""

_LENGTH: Final = Packer(">i")
_HEAD: Final = Packer(">hhi")  # API key, version, correlation id
_CORRELATION: Final = Packer(">i")


@dataclass(slots=True, eq=False)
class Exchange:
    """A request that has arrived at a broker, and its response.

    mark: the count of committed changes when the request arrived; of a producer's request, the
        newest epoch of its producer id then.
    is_fenced: the request must be refused.
    response: None until the broker writes it.
    """

    node_id: int
    header: RequestHeader
    request: Any
    mark: int = 0
    is_fenced: bool = False
    response: Any = None

    @property
    def is_rude(self) -> bool:
        """Whether no member or producer sent it."""
        return self.header.client_id == RUDE


class Conversation:
    """One connection of a client to a broker; opaque after bytes that are no frame."""

    def __init__(
        self,
        node_id: int,
        wants: Callable[[int], bool],
        asked: Callable[[Exchange], None],
        answered: Callable[[Exchange], None],
    ) -> None:
        """`wants`: whether an oracle reads the requests of an API key."""
        self._node_id: Final = node_id
        self._wants: Final = wants
        self._asked: Final = asked
        self._answered: Final = answered
        self._open: Final[dict[int, Exchange]] = {}  # by correlation id
        self._requests: Final = _Frames(_HEAD.size, self._is_read, self._request)
        self._responses: Final = _Frames(_CORRELATION.size, self._is_awaited, self._response)

    def arrives(self, data: bytes) -> None:
        """Read bytes that arrive at the broker."""
        self._requests.feed(data)

    def leaves(self, data: bytes) -> None:
        """Read bytes that the broker writes."""
        self._responses.feed(data)

    def _is_read(self, head: bytes) -> bool:
        return self._wants(_HEAD.unpack(head)[0])

    def _is_awaited(self, head: bytes) -> bool:
        return _CORRELATION.unpack_from(head)[0] in self._open

    def _request(self, frame: bytes) -> None:
        header, request = decode_request(frame)
        exchange = self._open[header.correlation_id] = Exchange(self._node_id, header, request)
        self._asked(exchange)

    def _response(self, frame: bytes) -> None:
        exchange = self._open.pop(_CORRELATION.unpack_from(frame)[0])
        header = exchange.header
        _, exchange.response = decode_response(header.api_key, header.api_version, frame)
        self._answered(exchange)


class _Frames:
    """One direction: collects the frames chosen by their first bytes, and skips the others."""

    def __init__(
        self, head_bytes: int, wants: Callable[[bytes], bool], take: Callable[[bytes], None]
    ) -> None:
        self._head_bytes: Final = head_bytes
        self._wants: Final = wants
        self._take: Final = take
        self._held = b""
        self._skipped = 0  # the bytes of a frame that are still to be skipped
        self._is_opaque = False

    def feed(self, data: bytes) -> None:
        """Read the next bytes."""
        skipped = min(self._skipped, len(data))
        self._skipped -= skipped
        data = self._held + data[skipped:]
        place, end = 0, len(data)
        while end - place >= _LENGTH.size + self._head_bytes and not self._is_opaque:
            (length,) = _LENGTH.unpack_from(data, place)
            start = place + _LENGTH.size
            self._is_opaque = length < self._head_bytes
            if self._is_opaque or not self._wants(data[start : start + self._head_bytes]):
                place = start + length
                if place > end:
                    self._skipped, place = place - end, end
            elif end - start < length:
                break
            else:
                self._take(data[start : start + length])
                place = start + length
        self._held = b"" if self._is_opaque else data[place:]

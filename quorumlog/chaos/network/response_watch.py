"""Matches the responses of one connection with their requests, and decodes the small ones. Pure.

It copies the bytes: the forwarded stream does not depend on it.
"""

from struct import Struct as Packer
from typing import Final, NamedTuple

from quorumlog.chaos.network.splitters import Piece
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.schemas import APIS, RequestHeader, decode_response

_WATCHED: Final = frozenset(
    {
        *("Produce", "Fetch", "ListOffsets", "Metadata", "OffsetForLeaderEpoch"),
        *("OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup", "SyncGroup"),
        *("Heartbeat", "LeaveGroup", "ConsumerGroupHeartbeat", "InitProducerId"),
        *("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"),
        *("CreateTopics", "DeleteTopics"),
    }
)
_REQUEST: Final = Packer(">ihhih")  # length, API key, version, correlation id, size of client_id
_LENGTH_BYTES: Final = 4
_RESPONSE_BYTES_MAX: Final = 16 * 1024  # records make a Fetch response larger
_UNANSWERED_MAX: Final = 1_000  # with acks=0 there is no response


class Answered(NamedTuple):
    """A whole response, with the header of its request; None: it cannot be decoded."""

    request: RequestHeader
    response: Response | None


class ResponseWatch:
    """The requests of one connection that are not answered yet, and the response under way.

    Invariants: at most _UNANSWERED_MAX requests and _RESPONSE_BYTES_MAX bytes are held.
    """

    def __init__(self) -> None:
        self._client_id: str | None = None
        self._unanswered: Final[dict[int, RequestHeader]] = {}
        self._request: RequestHeader | None = None  # of the response under way
        self._held = bytearray()
        self._size = 0  # of the response under way

    def note_request(self, piece: Piece) -> None:
        """Note the request that begins with this piece, if it does."""
        if piece.message is None or piece.message.api not in _WATCHED:
            return
        content = piece.content
        if self._client_id is None and len(content) >= _REQUEST.size:
            *_, size = _REQUEST.unpack_from(content)
            name = bytes(content[_REQUEST.size : _REQUEST.size + size]) if size > 0 else b""
            if len(name) == max(size, 0):  # else it is cut off: the next request has it, too
                self._client_id = name.decode("utf-8", "replace")
        api_key = int.from_bytes(content[4:6], "big", signed=True)
        version = int.from_bytes(content[6:8], "big", signed=True)
        if version not in APIS[api_key].versions:
            return
        if len(self._unanswered) >= _UNANSWERED_MAX:
            self._unanswered.pop(next(iter(self._unanswered)))
        number = piece.message.number
        self._unanswered[number] = RequestHeader(api_key, version, number, self._client_id)

    def response(self, piece: Piece) -> Answered | None:
        """Return the response that this piece completes, if it is watched and small."""
        if piece.message is not None:
            self._request = self._unanswered.pop(piece.message.number, None)
            self._size = _LENGTH_BYTES + int.from_bytes(piece.content[:_LENGTH_BYTES], "big")
            self._held.clear()
        if self._request is None or self._size > _RESPONSE_BYTES_MAX:
            return None
        self._held += piece.content
        if len(self._held) < self._size:
            return None
        request, self._request = self._request, None
        frame = bytes(self._held[_LENGTH_BYTES:])
        try:
            _, response = decode_response(request.api_key, request.api_version, frame)
        except MalformedFrame:
            return Answered(request, None)
        return Answered(request, response)

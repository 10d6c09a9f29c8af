"""Splits a stream of bytes into messages: Kafka's frames, or the control plane's HTTP. Pure.

A splitter holds back only the header of a message, until it is whole. Bytes that are no message
make the rest of the stream opaque: it passes unchanged. So do TLS, and the raw tokens that follow
version 0 of SaslHandshake. Sources: Kafka's protocol guide (request and response headers), KIP-43;
RFC 9112, as far as aiohttp uses it: bodies have a Content-Length; RFC 8446, section 5.1.
"""

from collections.abc import Callable
from struct import Struct as Packer
from typing import Final, NamedTuple, Protocol

_REQUEST: Final = Packer(">ihhi")  # length, API key, version, correlation id
_REPLY: Final = Packer(">ii")  # length, correlation id
_LENGTH_BYTES: Final = 4
_HANDSHAKE_KEY: Final = 17  # of SaslHandshake
_TLS_TYPES: Final = range(0x14, 0x18)  # of records: change, alert, handshake, data
_TLS_MAJOR: Final = 3
_HEAD_BYTES_MAX: Final = 64 * 1024
_HEAD_END: Final = b"\r\n\r\n"
_NO_BODY: Final = (b"204", b"304")


class Message(NamedTuple):
    """The start of a message. `number`: equal in a request and its reply, per connection."""

    api: str  # of a request; "" for a reply
    number: int


class Piece(NamedTuple):
    """Consecutive bytes of one message; `message` is set in the message's first piece.

    is_last: the message ends with it; in Kafka's frames alone.
    """

    content: bytes | memoryview
    message: Message | None = None
    is_last: bool = False


class Splitter(Protocol):
    """Splits one direction of one connection."""

    def feed(self, data: bytes) -> list[Piece]:
        """Split the next bytes; return the complete pieces, in order."""

    def rest(self) -> bytes:
        """Return the bytes held back at the end of the stream."""


class KafkaSplitter:
    """Frames: four bytes of length, then as many bytes. `name_of`: of API keys, for requests."""

    def __init__(self, name_of: Callable[[int], str] | None) -> None:
        self._name_of: Final = name_of
        self._header: Final = _REPLY if name_of is None else _REQUEST
        self._held = b""
        self._left = 0  # bytes of the frame under way
        self._is_opaque = self._ends_frames = False  # the latter: with this frame

    def feed(self, data: bytes) -> list[Piece]:
        """See Splitter."""
        if self._is_opaque:
            return [Piece(data)]
        if self._held:
            data, self._held = self._held + data, b""
        header = self._header
        if not self._left and len(data) >= header.size:
            length, *rest = header.unpack_from(data)
            if length == len(data) - _LENGTH_BYTES:  # one frame in one read, as most
                message = self._message(rest)
                self._is_opaque = self._ends_frames
                return [Piece(data, message, is_last=True)]
        return self._pieces(data)

    def _pieces(self, data: bytes) -> list[Piece]:
        pieces: list[Piece] = []
        view, place, end, header = memoryview(data), 0, len(data), self._header
        while place < end:
            message = None
            if not self._left:
                if end - place < header.size:
                    self._held = data[place:]
                    break
                length, *rest = header.unpack_from(view, place)
                if length < header.size - _LENGTH_BYTES or _is_tls(length):
                    self._is_opaque = True
                    pieces.append(Piece(view[place:]))
                    break
                self._left = length + _LENGTH_BYTES
                message = self._message(rest)
            size = min(self._left, end - place)
            self._left -= size
            pieces.append(Piece(view[place : place + size], message, not self._left))
            place += size
            if self._ends_frames and not self._left:
                self._is_opaque = True
                if place < end:
                    pieces.append(Piece(view[place:]))
                break
        return pieces

    def _message(self, fields: list[int]) -> Message:
        if self._name_of is None:
            return Message("", fields[0])
        api_key, version, number = fields
        self._ends_frames = api_key == _HANDSHAKE_KEY and version == 0  # raw tokens follow it
        return Message(self._name_of(api_key), number)

    def rest(self) -> bytes:
        """See Splitter."""
        return self._held


def _is_tls(length: int) -> bool:
    """Whether the bytes of a length begin a record of TLS: no frame has 300 MB."""
    return length >> 24 in _TLS_TYPES and (length >> 16) & 0xFF == _TLS_MAJOR


class HttpSplitter:
    """Requests `POST /rpc/<Name>`, or their replies. An upgrade makes the rest opaque.

    The kind of another request is the last part of its path. A reply has the number of its request,
    because a request is sent only after the reply to the one before.
    """

    def __init__(self, *, is_request: bool) -> None:
        self._is_request: Final = is_request
        self._held = b""
        self._left = 0
        self._count = 0
        self._is_opaque = False

    def feed(self, data: bytes) -> list[Piece]:
        """See Splitter."""
        pieces: list[Piece] = []
        if self._held:
            data, self._held = self._held + data, b""
        place, end = 0, len(data)
        while place < end:
            message = None
            if self._is_opaque:
                pieces.append(Piece(data[place:]))
                break
            if not self._left and data[place] in _TLS_TYPES:
                self._is_opaque = True
                continue
            if not self._left:
                head_end = data.find(_HEAD_END, place)
                if head_end < 0 and end - place < _HEAD_BYTES_MAX:
                    self._held = data[place:]
                    break
                message = self._begin(data[place:head_end], head_end < 0)
                if not self._is_opaque:
                    self._left += head_end + len(_HEAD_END) - place
            size = end - place if self._is_opaque else min(self._left, end - place)
            pieces.append(Piece(data[place : place + size], message))
            self._left = 0 if self._is_opaque else self._left - size
            place += size
        return pieces

    def _begin(self, head: bytes, is_endless: bool) -> Message:
        """Parse the head of a message; store the length of its body in `_left`."""
        first, *lines = head.split(b"\r\n")
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        words = first.split(b" ")
        what = words[1] if len(words) > 1 else b""
        length = fields.get(b"content-length", b"0" if self._has_no_body(what, fields) else b"")
        self._is_opaque = is_endless or b"upgrade" in fields or not length.isdigit()
        self._left = 0 if self._is_opaque else int(length)
        self._count += 1
        path = what.partition(b"?")[0].rpartition(b"/")[2]
        return Message(path.decode("latin-1") if self._is_request else "", self._count)

    def _has_no_body(self, what: bytes, fields: dict[bytes, bytes]) -> bool:
        is_chunked = b"transfer-encoding" in fields
        return not is_chunked if self._is_request else what in _NO_BODY

    def rest(self) -> bytes:
        """See Splitter."""
        return self._held

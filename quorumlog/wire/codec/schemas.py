"""The entrance to the codec: frames of requests and responses, with their headers.

Header versions (KIP-482): flexible requests have header v2 and flexible responses header v1, older
versions have v1 and v0. Two exceptions: `client_id` is always a string of the old form, and a
response to ApiVersions always has header v0, because its client does not have the broker's versions
yet (KIP-511).
"""

from functools import cache
from importlib import import_module
from struct import Struct as Packer
from typing import Any, Final, NamedTuple, cast

from quorumlog.wire.codec import fetched_records
from quorumlog.wire.codec.decoder import DECODING_ERRORS, Decode, decode_message, decoder_for
from quorumlog.wire.codec.encoder import encode_message, encode_to_send
from quorumlog.wire.codec.errors import MalformedFrame, UnencodableMessage
from quorumlog.wire.codec.message import (
    Buffer,
    EncodedRequest,
    EncodedResponse,
    Request,
    Response,
    Sendable,
    contents,
)
from quorumlog.wire.codec.messages import APIS, UNUSED_APIS
from quorumlog.wire.codec.varint import skip_tagged_fields

__all__ = [
    "APIS", "MalformedFrame", "RequestHeader", "UnencodableMessage", "UnsupportedVersion",
    "decode_message", "decode_request", "decode_response", "decode_whole_response",
    "encode_message", "encode_request", "encode_response", "encode_whole_request", "message_of",
    "request_class", "response_class", "response_to_send",
]  # fmt: skip

FETCH_KEY: Final = 1
API_VERSIONS_KEY: Final = 18
_REQUEST_HEADER: Final = Packer(">hhih")  # the last field: the length of client_id
_INT32: Final = Packer(">i")
_UNSUPPORTED_VERSION: Final = memoryview(b"\0\x23")  # ErrorCode.UNSUPPORTED_VERSION as int16


class RequestHeader(NamedTuple):
    """The header of a request. The response repeats `correlation_id`."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None

    @property
    def label(self) -> str:
        """The API and its version, for log messages: "DescribeQuorum v2"."""
        api = APIS.get(self.api_key)
        name = UNUSED_APIS.get(self.api_key, f"API key {self.api_key}") if api is None else api.name
        return f"{name} v{self.api_version}"


class UnsupportedVersion(Exception):
    """An API or version without message classes.

    `header`: for the response (error 35).
    """

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"{header.label} is not supported")
        self.header: Final = header


class _Codec(NamedTuple):
    decode: Decode
    flexible: bool


def decode_request(frame: Buffer) -> tuple[RequestHeader, Request[Any]]:
    """Return the request in `frame` (without its length). Its records are views into `frame`.

    Raises UnsupportedVersion for an API or version without message classes, and MalformedFrame.
    """
    view = memoryview(frame)
    end = len(view)
    try:
        header, position = _decode_request_header(view, end)
        try:
            codec = _request_codec(header.api_key, header.api_version)
        except KeyError:
            raise UnsupportedVersion(header) from None
        if codec.flexible:
            position = skip_tagged_fields(view, position) if view[position] else position + 1
        message, _ = codec.decode(view, position, end)
    except DECODING_ERRORS as error:
        raise MalformedFrame(f"a request of {end} bytes: {error}") from error
    return header, message  # type: ignore[return-value]  # decoded as a request class


def _decode_request_header(view: memoryview, end: int) -> tuple[RequestHeader, int]:
    api_key, api_version, correlation_id, size = _REQUEST_HEADER.unpack_from(view)
    position = _REQUEST_HEADER.size
    client_id = None
    if size >= 0:
        stop = position + size
        if stop > end:
            raise MalformedFrame("client_id is longer than the frame")
        client_id = str(view[position:stop], "utf-8")
        position = stop
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def encode_request(
    request: Request[Any], *, api_version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Return a frame with its length, as buffers to be sent in order.

    Large records are not copied. Raises UnencodableMessage if a value does not fit its field.
    """
    if isinstance(request, EncodedRequest):
        return request.frame(api_version, correlation_id, client_id)
    return encode_whole_request(request, api_version, correlation_id, client_id)


def encode_whole_request(
    request: Request[Any], api_version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """Encode every field, as `encode_request` does for most requests."""
    chunks = encode_to_send(request, api_version)
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    header = _REQUEST_HEADER.pack(request.API_KEY, api_version, correlation_id, size) + name
    if api_version >= request.FLEXIBLE_SINCE:
        header += b"\0"
    return contents(_framed(header, chunks))


def encode_response(header: RequestHeader, response: Response) -> list[Buffer]:
    """Return the frame of a response to the request of `header`, as `encode_request` does."""
    return contents(response_to_send(header, response))


def response_to_send(header: RequestHeader, response: Response) -> list[Sendable]:
    """Return the frame of a response; ranges of files among its records are not read.

    Raises UnencodableMessage.
    """
    if isinstance(response, EncodedResponse):
        return response.frame(header.correlation_id)
    version = header.api_version
    chunks = encode_to_send(response, version)
    correlation_id = _INT32.pack(header.correlation_id)
    if _has_flexible_header(response, version):
        correlation_id += b"\0"
    return _framed(correlation_id, chunks)


def message_of(header: RequestHeader, response: Response) -> Response:
    """Return a response with its fields: one that encodes itself as its client decodes it."""
    if not isinstance(response, EncodedResponse):
        return response
    frame = b"".join(contents(response.frame(header.correlation_id)))[_INT32.size :]
    return decode_whole_response(header.api_key, header.api_version, frame)[1]


def decode_response(api_key: int, api_version: int, frame: Buffer) -> tuple[int, Response]:
    """Return (correlation_id, response) in `frame` (without its length).

    Its records are views into `frame`. API and version are the request's; but a broker without the
    version of an ApiVersions request responds in version 0, with error 35 (KIP-511). Raises
    MalformedFrame.
    """
    if api_key == FETCH_KEY and api_version >= fetched_records.SINCE_VERSION:
        usual = fetched_records.decode_fetched(memoryview(frame))
        if usual is not None:
            return usual
    return decode_whole_response(api_key, api_version, frame)


def decode_whole_response(api_key: int, api_version: int, frame: Buffer) -> tuple[int, Response]:
    """Decode field by field, as `decode_response` does for most responses."""
    view = memoryview(frame)
    if api_key == API_VERSIONS_KEY and view[4:6] == _UNSUPPORTED_VERSION:
        api_version = 0
    codec = _response_codec(api_key, api_version)
    try:
        (correlation_id,) = _INT32.unpack_from(view)
        position = _INT32.size
        if codec.flexible:
            position = skip_tagged_fields(view, position)
        message, _ = codec.decode(view, position, len(view))
    except DECODING_ERRORS as error:
        name = APIS[api_key].name
        raise MalformedFrame(f"a {name} v{api_version} response: {error}") from error
    return correlation_id, message  # type: ignore[return-value]  # decoded as a response class


def _framed(header: bytes, chunks: list[Sendable]) -> list[Sendable]:
    size = len(header)
    for chunk in chunks:
        size += len(chunk)
    chunks[0] = b"".join((_INT32.pack(size), header, cast(bytes, chunks[0])))
    return chunks


def _has_flexible_header(response: Response | type[Response], version: int) -> bool:
    return version >= response.FLEXIBLE_SINCE and response.API_KEY != API_VERSIONS_KEY


def request_class(api_key: int) -> type[Request[Any]]:
    """Return the class of an API's requests. Imports its module; raises KeyError if unknown."""
    found: type[Request[Any]] = _class_of(api_key, "Request")
    return found


def response_class(api_key: int) -> type[Response]:
    """Return the class of an API's responses. Imports and raises as `request_class`."""
    found: type[Response] = _class_of(api_key, "Response")
    return found


def _class_of(api_key: int, suffix: str) -> Any:
    api = APIS[api_key]
    module = import_module(f"quorumlog.wire.codec.messages.{api.module}")
    return getattr(module, api.name + suffix)


@cache
def _request_codec(api_key: int, version: int) -> _Codec:
    """Return the codec of a request. Raises KeyError, uncached, if there is none."""
    if version not in APIS[api_key].versions:
        raise KeyError(version)
    found = request_class(api_key)
    return _Codec(decoder_for(found, version), version >= found.FLEXIBLE_SINCE)


@cache
def _response_codec(api_key: int, version: int) -> _Codec:
    found = response_class(api_key)
    return _Codec(decoder_for(found, version), _has_flexible_header(found, version))

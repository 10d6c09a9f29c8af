"""The keys and values of records of internal topics: messages behind their version, an int16."""

from struct import Struct as Packer
from typing import Final, TypeVar

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Message
from quorumlog.wire.codec.schemas import decode_message, encode_message

_VERSION: Final = Packer(">h")
VERSION_BYTES: Final = _VERSION.size
MessageT = TypeVar("MessageT", bound=Message)


def encode_versioned(version: int, message: Message) -> bytes:
    """Return the message in this version, behind the version."""
    return b"".join([_VERSION.pack(version), *encode_message(message, version)])


def version_of(data: bytes) -> int:
    """Return the version in front of a message; `data` may be too short."""
    return int.from_bytes(data[:VERSION_BYTES], "big", signed=True)


def decode_versioned(kind: type[MessageT], data: bytes) -> MessageT:
    """Return the message. Raises MalformedFrame, also for an unknown version."""
    version = version_of(data)
    if len(data) < VERSION_BYTES or version not in kind.VERSIONS:
        name = kind.__name__.removeprefix("_")
        raise MalformedFrame(f"{name} of version {version} in {len(data)} bytes")
    return decode_message(kind, version, memoryview(data)[VERSION_BYTES:])

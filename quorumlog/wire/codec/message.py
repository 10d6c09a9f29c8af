"""The base of every message class; the classes themselves are generated (`messages/`).

A class describes all versions of its message at once: it has the union of the fields, and each
field names the versions that have it on the wire. Values are plain: int, float, bool, str, bytes,
list, or another `Struct`. A uuid is 16 raw bytes, a duration or timestamp is an int of
milliseconds, an error code is an int.
"""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from quorumlog.wire.codec.file_range import FileRange

Buffer = bytes | bytearray | memoryview
Received = tuple[bytearray, memoryview]
"""A buffer with received bytes, and a read-only view of all of it."""
Sendable = Buffer | FileRange
Records = Buffer | Sequence[Sendable] | None
"""Record batches: decoded, a view into the frame; to encode, one or several consecutive parts."""

EMPTY: Final[list[Any]] = []
"""The default of an array argument: a new list takes its place. It is never stored or changed."""
ZERO_UUID: Final = bytes(16)
OWN_TAGS_BEGIN: Final = 10_000  # tags of our own fields, between brokers; Kafka counts from 0


class Field(NamedTuple):
    """One field, for all versions of its struct.

    `type`: a wire type ("int32", "string", ...), a `Struct` class, or, for an array, a list of one
    such type.
    `versions`, `nullable`: "3+", "3-12" or "7"; `nullable` is "" if null is never allowed.
    `tag`: the number of a tagged field (KIP-482); the field is left out if it has its default.
    """

    name: str
    type: "str | type[Struct] | Sequence[str | type[Struct]]"
    versions: str
    nullable: str = ""
    tag: int | None = None


class Struct:  # noqa: PLW1641 - mutable, so without a hash
    """A group of fields. Invariant: `__slots__` and `FIELDS` name the same fields in wire order."""

    __slots__: tuple[str, ...] = ()
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class Message(Struct):
    """A struct that can be encoded by itself, in each of `VERSIONS`.

    From version `FLEXIBLE_SINCE` on, lengths are varints and tagged fields are allowed (KIP-482).
    """

    __slots__ = ()
    VERSIONS: ClassVar[range]
    FLEXIBLE_SINCE: ClassVar[int]


class Response(Message):
    """A response of a broker; `API_KEY` as in the request."""

    __slots__ = ()
    API_KEY: ClassVar[int]


class EncodedResponse(Response):
    """A response that encodes itself, for the version of its request."""

    __slots__ = ()

    def frame(self, correlation_id: int) -> list[Sendable]:
        """Return the frame with its length, to be sent in order. The first chunk is bytes."""
        raise NotImplementedError


ResponseT = TypeVar("ResponseT", bound=Response)


class Request(Message, Generic[ResponseT]):
    """A request to a broker. The type argument is the class of the response."""

    __slots__ = ()
    API_KEY: ClassVar[int]


class EncodedRequest(Request[ResponseT]):
    """A request that encodes itself."""

    __slots__ = ()

    def frame(self, api_version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
        """Return the frame with its length, as buffers to be sent in order."""
        raise NotImplementedError


def contents(chunks: Iterable[Sendable]) -> list[Buffer]:
    """Return the chunks with their ranges read, which may wait for the disk. Raises OSError."""
    return [chunk.read() if isinstance(chunk, FileRange) else chunk for chunk in chunks]

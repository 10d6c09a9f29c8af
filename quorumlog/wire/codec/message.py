"""The base of every message class: each attribute of a class declares a field on the wire.

A class describes all versions of its message at once: it has the union of the fields, and each
field names the versions that have it on the wire. Values are plain: int, float, bool, str, bytes,
list, or another `Struct`. A uuid is 16 raw bytes, a duration or timestamp is an int of
milliseconds, an error code is an int. Kafka's messages are generated (`messages/`); the records of
internal topics are written by hand.
"""

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar, dataclass_transform

from quorumlog.invariants import require
from quorumlog.wire.codec.file_range import FileRange

Buffer = bytes | bytearray | memoryview
Received = tuple[bytearray, memoryview]
"""A buffer with received bytes, and a read-only view of all of it."""
Sendable = Buffer | FileRange
Records = Buffer | Sequence[Sendable] | None
"""Record batches: decoded, a view into the frame; to encode, one or several consecutive parts."""

ZERO_UUID: Final = bytes(16)
OWN_TAGS_BEGIN: Final = 10_000  # tags of our own fields, between brokers; Kafka counts from 0


class Field(NamedTuple):
    """One field, for all versions of its struct.

    `type`: a wire type ("int32", "string", ...), a `Struct` class, or, for an array, a list of one
    such type.
    `versions`, `nullable`: "3+", "3-12" or "7"; `nullable` is "" if null is never allowed.
    `tag`: the number of a tagged field (KIP-482); the field is left out if it has its default.
    `default_factory`: `list`, or the class of a struct, if the default is such an object.
    """

    name: str
    type: "str | type[Struct] | Sequence[str | type[Struct]]"
    versions: str
    nullable: str = ""
    tag: int | None = None
    default: object = None
    default_factory: Callable[[], object] | None = None

    def initial(self) -> object:
        """Return the default; a list or a struct is a new object."""
        return self.default if self.default_factory is None else self.default_factory()


def wire(
    kind: Any,
    versions: str = "0+",
    *,
    default: Any = None,
    default_factory: Callable[[], Any] | None = None,
    nullable: str = "",
    tag: int | None = None,
) -> Any:
    """Declare an attribute of a `Struct`: the arguments are those of `Field`."""
    return Field("", kind, versions, nullable, tag, default, default_factory)


def _compile_constructor(self: "Struct", **values: Any) -> None:
    """Replace itself by the compiled constructor: this is the first instance of a class."""
    classes = type(self).__mro__  # a subclass may have a constructor of its own
    made = next(one for one in classes if "FIELDS" in one.__dict__)
    made.__init__ = _constructor(made)  # type: ignore[misc]
    made.__init__(self, **values)  # type: ignore[misc]


@dataclass_transform(kw_only_default=True, field_specifiers=(wire,))
class StructType(type):
    """The class of `Struct` classes: makes slots, `FIELDS` and a constructor of the attributes.

    The constructor has a keyword argument for each field. It is compiled for the first instance:
    most of the 400 structs that a node imports are only decoded there, or not used.
    """

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        """Make a class.

        Raises InvariantViolation if a base has fields, too, or a default can be changed.
        """
        fields = [
            field._replace(name=attribute)
            for attribute, field in attributes.items()
            if isinstance(field, Field)
        ]
        for field in fields:
            del attributes[field.name]
        inherits = any(getattr(base, "FIELDS", ()) for base in bases)
        if fields:
            require(not inherits, "no fields of a base")
            shared = [field.name for field in fields if type(field.default).__hash__ is None]
            require(not shared, f"no default is changeable, so shared by instances: {shared}")
            attributes |= {"FIELDS": tuple(fields), "__init__": _compile_constructor}
            attributes.pop("__annotations__", None)  # for type checkers only; a node has 1,300
        if not inherits:  # else the names of the base's fields
            attributes.setdefault("__slots__", tuple(field.name for field in fields))
        return super().__new__(cls, name, bases, attributes)


class Struct(metaclass=StructType):  # noqa: PLW1641 - mutable, so without a hash
    """A group of fields. Invariant: `__slots__` and `FIELDS` name the same fields in wire order."""

    __slots__: ClassVar[tuple[str, ...]]
    FIELDS: ClassVar[tuple[Field, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


StructT = TypeVar("StructT", bound=Struct)


def replaced(struct: StructT, **changes: Any) -> StructT:
    """Return a copy of the struct with these values in some fields."""
    return type(struct)(**{name: getattr(struct, name) for name in struct.__slots__} | changes)


_ABSENT: Final = object()


def _constructor(struct: type[Struct]) -> Callable[..., None]:
    """Return `__init__` of a class: straight-line code, as fast as a constructor in a module."""
    lines = []
    scope: dict[str, Any] = {"ABSENT": _ABSENT}
    defaults: dict[str, object] = {}
    for name, *_, default, factory in struct.FIELDS:
        value, defaults[name] = name, default
        if factory is not None:
            scope[f"new_{name}"] = factory
            made = "[]" if factory is list else f"new_{name}()"
            value, defaults[name] = f"{made} if {name} is ABSENT else {name}", _ABSENT
        lines.append(f" self.{name} = {value}")
    text = "\n".join((f"def __init__(self, *, {', '.join(defaults)}):", *lines))
    exec(compile(text, f"<{struct.__name__}>", "exec"), scope)  # noqa: S102 - text that is made here
    constructor: FunctionType = scope["__init__"]
    constructor.__kwdefaults__ = defaults
    return constructor


class Message(Struct):
    """A struct that can be encoded by itself, in each of `VERSIONS`.

    From version `FLEXIBLE_SINCE` on, lengths are varints and tagged fields are allowed (KIP-482).
    """

    VERSIONS: ClassVar[range]
    FLEXIBLE_SINCE: ClassVar[int]


class Response(Message):
    """A response of a broker; `API_KEY` as in the request."""

    API_KEY: ClassVar[int]


class EncodedResponse(Response):
    """A response that encodes itself, for the version of its request."""

    def frame(self, correlation_id: int) -> list[Sendable]:
        """Return the frame with its length, to be sent in order. The first chunk is bytes."""
        raise NotImplementedError


ResponseT = TypeVar("ResponseT", bound=Response)


class Request(Message, Generic[ResponseT]):
    """A request to a broker. The type argument is the class of the response."""

    API_KEY: ClassVar[int]


class EncodedRequest(Request[ResponseT]):
    """A request that encodes itself."""

    def frame(self, api_version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
        """Return the frame with its length, as buffers to be sent in order."""
        raise NotImplementedError


def contents(chunks: Iterable[Sendable]) -> list[Buffer]:
    """Return the chunks with their ranges read, which may wait for the disk. Raises OSError."""
    return [chunk.read() if isinstance(chunk, FileRange) else chunk for chunk in chunks]

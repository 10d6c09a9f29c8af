"""Frozen dataclasses <-> plain values: dict, list, int, str, bytes, bool, None, as in CBOR.

A reader checks every value against its annotation, because the bytes come from a peer or a disk.
It skips unknown fields and fills in the defaults of absent fields, so a node reads values of its
next release and of its previous one. Fields that are None are not written.
"""

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")
Reader = Callable[[object], object]
_SCALARS: tuple[type, ...] = (int, str, bytes, bool, float)
_BUFFERS = (bytearray, memoryview, str)


class MalformedValue(ValueError):
    """A plain value that does not match its annotation; the message names the field."""


def to_plain(value: object) -> object:
    """Return `value` as dicts, lists and scalars. Raises TypeError for anything else."""
    kind: Any = type(value)
    if value is None or kind in _SCALARS:
        return value
    if isinstance(value, IntEnum):
        return int(value)
    if is_dataclass(value) and not isinstance(value, type):
        plain = {name: to_plain(getattr(value, name)) for name in _defaults(kind)}
        return {name: field for name, field in plain.items() if field is not None}
    # The exact type first: `isinstance` with an abstract class is slower.
    if kind is tuple or (isinstance(value, Sequence) and not isinstance(value, _BUFFERS)):
        return [to_plain(item) for item in typing.cast("Sequence[object]", value)]
    if isinstance(value, Mapping):
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} has no plain form")


def from_plain(kind: type[_T], plain: object) -> _T:
    """Return the `kind` that `plain` describes. Raises MalformedValue."""
    annotation: Any = kind
    return typing.cast("_T", _reader(annotation)(plain))


def changed_to_plain(value: Any) -> dict[str, object]:
    """Return the fields of a dataclass that differ from their defaults, as plain values."""
    plain = {}
    kind: Any = type(value)
    for name, default in _defaults(kind).items():
        field = getattr(value, name)
        if field != default:
            plain[name] = field if type(field) in _SCALARS else to_plain(field)
    return plain


@cache
def _defaults(kind: type) -> Mapping[str, object]:
    """Return the default of each field; None, which is never written, for a required field."""
    return {
        field.name: None if field.default is MISSING else field.default for field in fields(kind)
    }


@cache
def _reader(annotation: Any) -> Reader:
    """Build the reader for one annotation, once."""
    if isinstance(annotation, typing.NewType):
        return _reader(annotation.__supertype__)
    origin = typing.get_origin(annotation)
    if origin is not None:
        return _generic_reader(origin, typing.get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, IntEnum):
        return _enum_reader(annotation)
    if is_dataclass(annotation):
        return _dataclass_reader(typing.cast("type", annotation))
    if annotation is object:
        return lambda plain: plain  # the code that uses the field checks its type
    if annotation in _SCALARS:
        return _scalar_reader(annotation)
    raise TypeError(f"no plain form for {annotation!r}")


def _generic_reader(origin: object, arguments: tuple[Any, ...]) -> Reader:
    if origin in {typing.Union, types.UnionType}:
        return _optional_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is Mapping:
        return _mapping_reader(arguments)
    raise TypeError(f"no plain form for {origin!r}")


def _scalar_reader(kind: type) -> Reader:
    def read(plain: object) -> object:
        if type(plain) is not kind:
            raise MalformedValue(f"expected {kind.__name__}, got {type(plain).__name__}")
        return plain

    return read


def _optional_reader(arguments: tuple[Any, ...]) -> Reader:
    others = [argument for argument in arguments if argument is not types.NoneType]
    if len(others) != 1 or len(others) == len(arguments):
        raise TypeError(f"only `X | None` has a plain form, not {arguments!r}")
    read_other = _reader(others[0])
    return lambda plain: None if plain is None else read_other(plain)


def _items_reader(read_item: Reader) -> Reader:
    def read(plain: object) -> object:
        if not isinstance(plain, list):
            raise MalformedValue(f"expected a list, got {type(plain).__name__}")
        return tuple(map(read_item, plain))

    return read


def _tuple_reader(arguments: tuple[Any, ...]) -> Reader:
    if arguments[-1] is Ellipsis:
        return _items_reader(_reader(arguments[0]))
    readers = [_reader(argument) for argument in arguments]

    def read(plain: object) -> object:
        if not isinstance(plain, list) or len(plain) != len(readers):
            raise MalformedValue(f"expected a list of {len(readers)}")
        return tuple(read(item) for read, item in zip(readers, plain, strict=True))

    return read


def _mapping_reader(arguments: tuple[Any, ...]) -> Reader:
    read_key, read_value = _reader(arguments[0]), _reader(arguments[1])

    def read(plain: object) -> object:
        if not isinstance(plain, dict):
            raise MalformedValue(f"expected a map, got {type(plain).__name__}")
        return {read_key(key): read_value(value) for key, value in plain.items()}

    return read


def _enum_reader(kind: type[IntEnum]) -> Reader:
    def read(plain: object) -> object:
        try:
            return kind(typing.cast("int", plain))
        except ValueError as error:
            raise MalformedValue(str(error)) from None

    return read


def _dataclass_reader(kind: type) -> Reader:
    hints = typing.get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    required = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]

    def read(plain: object) -> object:
        if not isinstance(plain, dict):
            raise MalformedValue(f"{kind.__name__}: expected a map, got {type(plain).__name__}")
        values: dict[str, object] = {}
        name: Any = None
        try:
            for name, field in plain.items():
                read_field = readers.get(name)
                if read_field is not None:
                    values[name] = read_field(field)
            for name in required:
                if name not in values:  # None is not written, so absence is how None arrives
                    values[name] = readers[name](None)
        except MalformedValue as error:
            raise MalformedValue(f"{kind.__name__}.{name}: {error}") from None
        return kind(**values)

    return read

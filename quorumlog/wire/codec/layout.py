"""The fields of a struct in one version: the input of encoders and decoders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from struct import calcsize
from typing import Any, Final

from quorumlog.invariants import require
from quorumlog.wire.codec.message import Field, Message, Struct

FIXED_FORMATS: Final = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I",
    "int64": "q", "float64": "d", "uuid": "16s",
}  # fmt: skip
"""The wire types of fixed size, as `struct` formats."""
FIXED_SIZES: Final = {name: calcsize(f">{format_}") for name, format_ in FIXED_FORMATS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldLayout:
    """One field in one version. For structs, `struct` is set and `wire_type` is ""."""

    name: str
    wire_type: str
    struct: type[Struct] | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The fields of one struct in one version.

    `fields` are in wire order, `tagged` by tag; `absent` are fields of other versions only.
    """

    fields: tuple[FieldLayout, ...]
    tagged: tuple[FieldLayout, ...]
    absent: tuple[FieldLayout, ...]


def contains(versions: str, version: int) -> bool:
    """Whether `version` is among `versions`: "", "3", "3-12" or "3+"."""
    if not versions:
        return False
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    first, _, last = versions.partition("-")
    return int(first) <= version <= int(last or first)


def layout_of(struct: type[Struct], version: int) -> Layout:
    """Return the layout of `struct` in a message of `version`."""
    fields, tagged, absent = [], [], []
    for field in struct.FIELDS:
        layout = _field_layout(field, version, field.initial())
        if not contains(field.versions, version):
            absent.append(layout)
        elif field.tag is None:
            fields.append(layout)
        else:
            tagged.append(layout)
    tagged.sort(key=lambda layout: layout.tag or 0)
    return Layout(fields=tuple(fields), tagged=tuple(tagged), absent=tuple(absent))


def _field_layout(field: Field, version: int, default: object) -> FieldLayout:
    is_array = isinstance(field.type, list)
    inner = field.type[0] if isinstance(field.type, list) else field.type
    is_struct = isinstance(inner, type)
    require(is_struct or isinstance(inner, str), f"{field.name} has a type")
    return FieldLayout(
        name=field.name,
        wire_type=inner if isinstance(inner, str) else "",
        struct=inner if isinstance(inner, type) else None,
        is_array=is_array,
        nullable=contains(field.nullable, version),
        tag=field.tag,
        default=default,
    )


def element_of(field: FieldLayout) -> FieldLayout:
    """Return the layout of one element of an array: never null, without a tag or a default."""
    return replace(field, is_array=False, nullable=False, tag=None, default=None)


def array_format(field: FieldLayout, size: str) -> str:
    """Return the expression for the `struct` format of `size` elements of fixed size."""
    format_ = FIXED_FORMATS[field.wire_type]
    many = f"'{format_}' * {size}" if len(format_) > 1 else f"f'{{{size}}}{format_}'"
    return f"'>' + {many}"


def minimum_size(struct: type[Struct], version: int, *, flexible: bool) -> int:
    """Return the minimum size of a `struct`, in bytes: it bounds the count of an array."""
    size = 1 if flexible else 0
    for field in layout_of(struct, version).fields:
        size += _minimum_field_size(field, version, flexible=flexible)
    return max(size, 1)


def _minimum_field_size(field: FieldLayout, version: int, *, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if field.nullable else minimum_size(field.struct, version, flexible=flexible)
    if field.wire_type in FIXED_SIZES:
        return FIXED_SIZES[field.wire_type]
    if flexible:
        return 1
    return 2 if field.wire_type == "string" else 4


class SourceWriter:
    """The source text of one function, and the names that it uses: `scope`, constants.

    The function is for one version of a message, which is `flexible` or not (KIP-482).
    Neighbouring values of fixed size are collected: one `struct.Struct` packs or unpacks them.
    """

    def __init__(
        self, message_class: type[Message], version: int, scope: Mapping[str, object]
    ) -> None:
        require(version in message_class.VERSIONS, f"{message_class.__name__} v{version} is known")
        self.message_class: Final = message_class
        self.version: Final = version
        self.flexible: Final = version >= message_class.FLEXIBLE_SINCE
        self._waiting: list[tuple[str, str]] = []
        self._lines: Final[list[str]] = []
        self._scope: Final[dict[str, Any]] = dict(scope)
        self._names = 0

    def emit(self, depth: int, line: str) -> None:
        """Add a line, indented `depth` times."""
        self._lines.append("    " * depth + line)

    def name(self, prefix: str) -> str:
        """Return a new name for a variable."""
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, name: str, value: object) -> str:
        """Bind `name` to `value` in the function's scope; return the name."""
        self._scope[name] = value
        return name

    def fixed(self, format_: str, expression: str) -> None:
        """Collect a value of fixed size: its `struct` format, and its source or target."""
        self._waiting.append((format_, expression))

    def take_fixed(self) -> tuple[str, str]:
        """Return and clear the collected formats and expressions, joined; ("", "") without any."""
        waiting, self._waiting = self._waiting, []
        formats = "".join(format_ for format_, _ in waiting)
        return formats, ", ".join(expression for _, expression in waiting)

    def function(self, name: str) -> Callable[..., Any]:
        """Compile the text and return the function of this name; the text is its `__doc__`."""
        text = "\n".join(self._lines)
        filename = f"<{name} {self.message_class.__name__} v{self.version}>"
        exec(compile(text, filename, "exec"), self._scope)  # noqa: S102 - text that is made here
        compiled: Callable[..., Any] = self._scope[name]
        compiled.__doc__ = text
        return compiled

"""Bytes -> message, by straight-line functions, compiled for each (class, version) at first use.

The bytes are not trusted: whatever they are, the result is a message or MalformedFrame, soon and
with memory in proportion to the frame: an array may not claim more elements than the rest of the
frame could hold. Unknown tagged fields are skipped (KIP-482). Bytes after the message are ignored,
as Kafka does. Records are views.
"""

from collections.abc import Callable, Sequence
from struct import Struct as Packer
from struct import error as PackError  # noqa: N812 - it is an exception, under the name of one
from struct import unpack_from
from typing import Any, Final, TypeVar, cast

from quorumlog.invariants import require
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.layout import (
    FIXED_FORMATS,
    FIXED_SIZES,
    FieldLayout,
    array_format,
    element_of,
    layout_of,
    minimum_size,
)
from quorumlog.wire.codec.message import Buffer, Message, Struct
from quorumlog.wire.codec.source_writer import SourceWriter
from quorumlog.wire.codec.varint import finish_uvarint, skip_tagged_fields

MessageT = TypeVar("MessageT", bound=Message)
Decode = Callable[[memoryview, int, int], tuple[Message, int]]
STRING_BYTES_MAX: Final = 32_767
"""What an int16 can say: as Kafka, we take no more where a varint could (KIP-482)."""
DECODING_ERRORS = (IndexError, PackError, UnicodeDecodeError)
"""What a decoder meets at the end of a truncated frame, or in garbage; its caller makes it
MalformedFrame.
"""


def decode_message(message_class: type[MessageT], version: int, buffer: Buffer) -> MessageT:
    """Return the message at the start of `buffer`.

    Its records are views into `buffer`. Raises MalformedFrame.
    """
    view = memoryview(buffer)
    try:
        message, _ = decoder_for(message_class, version)(view, 0, len(view))
    except DECODING_ERRORS as error:
        raise MalformedFrame(f"{message_class.__name__} v{version}: {error}") from error
    return cast(MessageT, message)


def decoder_for(message_class: type[Message], version: int) -> Decode:
    """Return, compiled at first use: (view, position, end of view) -> (message, next position).

    It raises MalformedFrame, or one of DECODING_ERRORS that its caller must turn into that.
    """
    decode = _decoders.get((message_class, version))
    if decode is None:
        name = message_class.__name__
        require(version in message_class.VERSIONS, f"{name} has a version {version}")
        source = _DecoderSource(version, flexible=version >= message_class.FLEXIBLE_SINCE)
        decode = _decoders[message_class, version] = source.compile(message_class)
    return decode


_decoders: Final[dict[tuple[type[Message], int], Decode]] = {}


_SCOPE: Final[dict[str, Any]] = {
    "MalformedFrame": MalformedFrame,
    "finish_uvarint": finish_uvarint,
    "new": object.__new__,
    "skip_tagged_fields": skip_tagged_fields,
    "unpack_from": unpack_from,
}


class _DecoderSource:
    """Writes the source of one decoder.

    In it `b` is the frame, `p` the position and `end` the frame's size.
    """

    def __init__(self, version: int, *, flexible: bool) -> None:
        self._version: Final = version
        self._flexible: Final = flexible
        self._source: Final = SourceWriter(_SCOPE)
        self._emit: Final = self._source.emit
        self._name: Final = self._source.name
        self._fixed: Final = self._source.fixed

    def compile(self, message_class: type[Message]) -> Decode:
        """Compile what decodes one message."""
        self._emit(0, "def decode(b, p, end):")
        self._struct(1, message_class, "message")
        self._flush(1)
        self._emit(1, "return message, p")
        name = f"<decoder of {message_class.__name__} v{self._version}>"
        return self._source.compile("decode", name)

    def _flush(self, depth: int) -> None:
        """Unpack what waits: before anything whose place depends on it, and after a loop."""
        formats, targets = self._source.take_fixed()
        if formats:
            packer = Packer(f">{formats}")
            unpack = self._source.constant(self._name("unpack_"), packer.unpack_from)
            self._emit(depth, f"({targets},) = {unpack}(b, p)")
            self._emit(depth, f"p += {packer.size}")

    def _struct(self, depth: int, struct: type[Struct], target: str) -> None:
        """Read a struct into a new local variable."""
        layout = layout_of(struct, self._version)
        self._emit(depth, f"{target} = new({self._class(struct)})")
        for field in (*layout.absent, *layout.tagged):
            self._emit(depth, f"{target}.{field.name} = {self._default(field)}")
        for field in layout.fields:
            self._field(depth, field, f"{target}.{field.name}")
        if not self._flexible:
            return
        self._flush(depth)
        if layout.tagged:
            self._tagged_fields(depth, layout.tagged, target)
        else:
            self._emit(depth, "p = skip_tagged_fields(b, p) if b[p] else p + 1")

    def _class(self, struct: type[Struct]) -> str:
        return self._source.constant(struct.__name__, struct)

    def _default(self, field: FieldLayout) -> str:
        if isinstance(field.default, Struct):
            return f"{self._class(type(field.default))}()"
        return repr(field.default)

    def _field(self, depth: int, field: FieldLayout, target: str) -> None:
        if field.is_array:
            self._array(depth, field, target)
        elif field.struct is None:
            self._scalar(depth, field, target)
        else:
            value = self._name("value")
            if field.nullable:
                # KIP-893: a byte says whether the struct is there.
                self._fixed("b", value)
                self._flush(depth)
                self._emit(depth, f"if {value} < 0:")
                self._emit(depth + 1, f"{target} = None")
                self._emit(depth, "else:")
                depth += 1
            self._struct(depth, field.struct, value)
            self._flush(depth)
            self._emit(depth, f"{target} = {value}")

    def _length(self, depth: int, size: str, legacy_format: str) -> None:
        """Read a length or count; below 0 means null."""
        if not self._flexible:
            self._fixed(legacy_format, size)
            self._flush(depth)
            return
        self._flush(depth)
        self._uvarint(depth, size)
        self._emit(depth, f"{size} -= 1")

    def _uvarint(self, depth: int, target: str) -> None:
        self._emit(depth, f"{target} = b[p]")
        self._emit(depth, "p += 1")
        self._emit(depth, f"if {target} > 127:")
        self._emit(depth + 1, f"{target}, p = finish_uvarint(b, p, {target})")

    def _null(self, depth: int, field: FieldLayout, target: str, size: str) -> None:
        self._emit(depth, f"if {size} < 0:")
        refusal = f'raise MalformedFrame("{field.name} is null")'
        self._emit(depth + 1, f"{target} = None" if field.nullable else refusal)

    def _scalar(self, depth: int, field: FieldLayout, target: str) -> None:
        if field.wire_type in FIXED_FORMATS:
            self._fixed(FIXED_FORMATS[field.wire_type], target)
            return
        size, stop = self._name("size"), self._name("stop")
        self._length(depth, size, "h" if field.wire_type == "string" else "i")
        self._null(depth, field, target, size)
        self._emit(depth, "else:")
        self._emit(depth + 1, f"{stop} = p + {size}")
        is_compact_string = field.wire_type == "string" and self._flexible
        or_too_long = f" or {size} > {STRING_BYTES_MAX}" if is_compact_string else ""
        self._emit(depth + 1, f"if {stop} > end{or_too_long}:")
        refusal = f'f"{field.name}: {{{size}}} bytes, {{end - p}} are left"'
        self._emit(depth + 2, f"raise MalformedFrame({refusal})")
        value = {
            "string": 'str(b[p:{0}], "utf-8")',
            "bytes": "bytes(b[p:{0}])",
            "records": "b[p:{0}]",
        }
        self._emit(depth + 1, f"{target} = {value[field.wire_type].format(stop)}")
        self._emit(depth + 1, f"p = {stop}")

    def _array(self, depth: int, field: FieldLayout, target: str) -> None:
        size = self._name("size")
        self._length(depth, size, "i")
        self._null(depth, field, target, size)
        self._emit(depth, f"elif {size} > (end - p) // {self._element_size(field)}:")
        self._emit(depth + 1, f'raise MalformedFrame("{field.name} is longer than the frame")')
        self._emit(depth, "else:")
        depth += 1
        if field.struct is None and field.wire_type in FIXED_FORMATS:
            self._emit(depth, f"{target} = [*unpack_from({array_format(field, size)}, b, p)]")
            self._emit(depth, f"p += {FIXED_SIZES[field.wire_type]} * {size}")
            return
        values, element = self._name("values"), self._name("element")
        self._emit(depth, f"{target} = {values} = []")
        self._emit(depth, f"for _ in range({size}):")
        if field.struct is None:
            self._scalar(depth + 1, element_of(field), element)
        else:
            self._struct(depth + 1, field.struct, element)
        self._flush(depth + 1)
        self._emit(depth + 1, f"{values}.append({element})")

    def _element_size(self, field: FieldLayout) -> int:
        """Return the fewest bytes of one element."""
        if field.struct is not None:
            return minimum_size(field.struct, self._version, flexible=self._flexible)
        if field.wire_type in FIXED_SIZES:
            return FIXED_SIZES[field.wire_type]
        return 1 if self._flexible else 2

    def _tagged_fields(self, depth: int, fields: Sequence[FieldLayout], target: str) -> None:
        count, tag, size, stop = (self._name(name) for name in ("count", "tag", "size", "stop"))
        self._uvarint(depth, count)
        self._emit(depth, f"for _ in range({count}):")
        depth += 1
        self._uvarint(depth, tag)
        self._uvarint(depth, size)
        self._emit(depth, f"{stop} = p + {size}")
        self._emit(depth, f"if {stop} > end:")
        self._emit(depth + 1, 'raise MalformedFrame("a tagged field is longer than the frame")')
        keyword = "if"
        for field in fields:
            self._emit(depth, f"{keyword} {tag} == {field.tag}:")
            self._field(depth + 1, field, f"{target}.{field.name}")
            self._flush(depth + 1)
            self._emit(depth + 1, f"if p != {stop}:")
            self._emit(depth + 2, f'raise MalformedFrame("{field.name} has another size")')
            keyword = "elif"
        self._emit(depth, "else:")
        self._emit(depth + 1, f"p = {stop}")

"""Bytes -> message, by straight-line functions, compiled for each (class, version) at first use.

A decoder does not trust the bytes. For any bytes it returns a message or raises MalformedFrame, in
time and memory proportional to the frame: the count of an array may not exceed the elements that
the rest of the frame could hold. It skips unknown tagged fields (KIP-482), and ignores bytes after
the message, as Kafka does. Records are views.
"""

from collections.abc import Callable, Mapping, Sequence
from struct import Struct as Packer
from struct import error as PackError  # noqa: N812 - an exception, so named like one
from struct import unpack_from
from typing import Final, TypeVar, cast

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.layout import (
    FIXED_FORMATS,
    FIXED_SIZES,
    FieldLayout,
    SourceWriter,
    array_format,
    element_of,
    layout_of,
    minimum_size,
)
from quorumlog.wire.codec.message import Buffer, Message, Struct
from quorumlog.wire.codec.varint import finish_uvarint, skip_tagged_fields

MessageT = TypeVar("MessageT", bound=Message)
Decode = Callable[[memoryview, int, int], tuple[Message, int]]
STRING_BYTES_MAX: Final = 32_767
"""The largest int16. Kafka refuses longer strings, even if their length is a varint (KIP-482)."""
DECODING_ERRORS = (IndexError, PackError, UnicodeDecodeError)
"""The errors that a decoder raises for a cut-off frame or garbage. Its caller turns them into
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

    It raises MalformedFrame, or one of DECODING_ERRORS: its caller turns them into MalformedFrame.
    """
    decode = _decoders.get((message_class, version))
    if decode is None:
        source = _DecoderSource(message_class, version, _SCOPE)
        decode = _decoders[message_class, version] = source.compile()
    return decode


_decoders: Final[dict[tuple[type[Message], int], Decode]] = {}


_SCOPE: Final[Mapping[str, object]] = {
    "MalformedFrame": MalformedFrame,
    "finish_uvarint": finish_uvarint,
    "new": object.__new__,
    "skip_tagged_fields": skip_tagged_fields,
    "unpack_from": unpack_from,
}


class _DecoderSource(SourceWriter):
    """Writes the source of one decoder.

    In it `b` is the frame, `p` the position and `end` the frame's size.
    """

    def compile(self) -> Decode:
        """Compile the decoder of one message."""
        self.emit(0, "def decode(b, p, end):")
        self._struct(1, self.message_class, "message")
        self._flush(1)
        self.emit(1, "return message, p")
        return self.function("decode")

    def _flush(self, depth: int) -> None:
        """Unpack the collected values: before any value behind them, and at the end of a loop."""
        formats, targets = self.take_fixed()
        if formats:
            packer = Packer(f">{formats}")
            unpack = self.constant(self.name("unpack_"), packer.unpack_from)
            self.emit(depth, f"({targets},) = {unpack}(b, p)")
            self.emit(depth, f"p += {packer.size}")

    def _struct(self, depth: int, struct: type[Struct], target: str) -> None:
        """Read a struct into a new local variable."""
        layout = layout_of(struct, self.version)
        self.emit(depth, f"{target} = new({self._class(struct)})")
        for field in (*layout.absent, *layout.tagged):
            self.emit(depth, f"{target}.{field.name} = {self._default(field)}")
        for field in layout.fields:
            self._field(depth, field, f"{target}.{field.name}")
        if not self.flexible:
            return
        self._flush(depth)
        if layout.tagged:
            self._tagged_fields(depth, layout.tagged, target)
        else:
            self.emit(depth, "p = skip_tagged_fields(b, p) if b[p] else p + 1")

    def _class(self, struct: type[Struct]) -> str:
        return self.constant(struct.__name__, struct)

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
            value = self.name("value")
            if field.nullable:
                # KIP-893: a byte precedes a nullable struct: null is -1, in a tagged field 0.
                self.fixed("b", value)
                self._flush(depth)
                self.emit(depth, f"if {value} < {0 if field.tag is None else 1}:")
                self.emit(depth + 1, f"{target} = None")
                self.emit(depth, "else:")
                depth += 1
            self._struct(depth, field.struct, value)
            self._flush(depth)
            self.emit(depth, f"{target} = {value}")

    def _length(self, depth: int, size: str, legacy_format: str) -> None:
        """Read a length or count; below 0 means null."""
        if not self.flexible:
            self.fixed(legacy_format, size)
            self._flush(depth)
            return
        self._flush(depth)
        self._uvarint(depth, size)
        self.emit(depth, f"{size} -= 1")

    def _uvarint(self, depth: int, target: str) -> None:
        self.emit(depth, f"{target} = b[p]")
        self.emit(depth, "p += 1")
        self.emit(depth, f"if {target} > 127:")
        self.emit(depth + 1, f"{target}, p = finish_uvarint(b, p, {target})")

    def _null(self, depth: int, field: FieldLayout, target: str, size: str) -> None:
        self.emit(depth, f"if {size} < 0:")
        refusal = f'raise MalformedFrame("{field.name} is null")'
        self.emit(depth + 1, f"{target} = None" if field.nullable else refusal)

    def _scalar(self, depth: int, field: FieldLayout, target: str) -> None:
        if field.wire_type in FIXED_FORMATS:
            self.fixed(FIXED_FORMATS[field.wire_type], target)
            return
        size, stop = self.name("size"), self.name("stop")
        self._length(depth, size, "h" if field.wire_type == "string" else "i")
        self._null(depth, field, target, size)
        self.emit(depth, "else:")
        self.emit(depth + 1, f"{stop} = p + {size}")
        is_compact_string = field.wire_type == "string" and self.flexible
        or_too_long = f" or {size} > {STRING_BYTES_MAX}" if is_compact_string else ""
        self.emit(depth + 1, f"if {stop} > end{or_too_long}:")
        refusal = f'f"{field.name}: {{{size}}} bytes, {{end - p}} are left"'
        self.emit(depth + 2, f"raise MalformedFrame({refusal})")
        value = {
            "string": 'str(b[p:{0}], "utf-8")',
            "bytes": "bytes(b[p:{0}])",
            "records": "b[p:{0}]",
        }
        self.emit(depth + 1, f"{target} = {value[field.wire_type].format(stop)}")
        self.emit(depth + 1, f"p = {stop}")

    def _array(self, depth: int, field: FieldLayout, target: str) -> None:
        size = self.name("size")
        self._length(depth, size, "i")
        self._null(depth, field, target, size)
        self.emit(depth, f"elif {size} > (end - p) // {self._element_size(field)}:")
        self.emit(depth + 1, f'raise MalformedFrame("{field.name} is longer than the frame")')
        self.emit(depth, "else:")
        depth += 1
        if field.struct is None and field.wire_type in FIXED_FORMATS:
            self.emit(depth, f"{target} = [*unpack_from({array_format(field, size)}, b, p)]")
            self.emit(depth, f"p += {FIXED_SIZES[field.wire_type]} * {size}")
            return
        values, element = self.name("values"), self.name("element")
        self.emit(depth, f"{target} = {values} = []")
        self.emit(depth, f"for _ in range({size}):")
        if field.struct is None:
            self._scalar(depth + 1, element_of(field), element)
        else:
            self._struct(depth + 1, field.struct, element)
        self._flush(depth + 1)
        self.emit(depth + 1, f"{values}.append({element})")

    def _element_size(self, field: FieldLayout) -> int:
        """Return the minimum size of one element, in bytes."""
        if field.struct is not None:
            return minimum_size(field.struct, self.version, flexible=self.flexible)
        if field.wire_type in FIXED_SIZES:
            return FIXED_SIZES[field.wire_type]
        return 1 if self.flexible else 2

    def _tagged_fields(self, depth: int, fields: Sequence[FieldLayout], target: str) -> None:
        count, tag, size, stop = (self.name(name) for name in ("count", "tag", "size", "stop"))
        self._uvarint(depth, count)
        self.emit(depth, f"for _ in range({count}):")
        depth += 1
        self._uvarint(depth, tag)
        self._uvarint(depth, size)
        self.emit(depth, f"{stop} = p + {size}")
        self.emit(depth, f"if {stop} > end:")
        self.emit(depth + 1, 'raise MalformedFrame("a tagged field is longer than the frame")')
        keyword = "if"
        for field in fields:
            self.emit(depth, f"{keyword} {tag} == {field.tag}:")
            self._field(depth + 1, field, f"{target}.{field.name}")
            self._flush(depth + 1)
            self.emit(depth + 1, f"if p != {stop}:")
            self.emit(depth + 2, f'raise MalformedFrame("{field.name} has another size")')
            keyword = "elif"
        self.emit(depth, "else:")
        self.emit(depth + 1, f"p = {stop}")

"""Message -> bytes, by straight-line functions, compiled for each (class, version) at first use.

Neighbouring fields of fixed size, and the lengths that follow them, become one `struct.pack`. Large
record buffers are passed on, not copied. The source of a compiled function is its `__doc__`.
"""

from collections.abc import Callable, Mapping, Sequence
from struct import Struct as Packer
from struct import error as PackError  # noqa: N812 - an exception, so named like one
from struct import pack
from typing import Final

from quorumlog.invariants import require
from quorumlog.wire.codec.errors import UnencodableMessage
from quorumlog.wire.codec.layout import (
    FIXED_FORMATS,
    FieldLayout,
    SourceWriter,
    array_format,
    element_of,
    layout_of,
)
from quorumlog.wire.codec.message import Buffer, Message, Sendable, Struct, contents
from quorumlog.wire.codec.varint import UVARINT_LIMIT, UVARINTS, encode_uvarint

Encode = Callable[[Message, list[Sendable], list[Buffer]], None]
COPY_BELOW_BYTES: Final = 1024
"""Smaller records are copied next to the bytes around them: one more buffer to send costs more
than the copy.
"""


def encode_message(message: Message, version: int) -> list[Buffer]:
    """Return the bytes of `message`, as consecutive buffers; see `encode_to_send`."""
    return contents(encode_to_send(message, version))


def encode_to_send(message: Message, version: int) -> list[Sendable]:
    """Return the bytes of `message`, in order; ranges of files among its records are not read.

    The first chunk is bytes.

    Fields that `version` lacks are left out. Raises UnencodableMessage if a value does not fit its
    field.
    """
    chunks: list[Sendable] = []
    parts: list[Buffer] = []
    try:
        encoder_for(type(message), version)(message, chunks, parts)
        chunks.append(b"".join(parts))
    except (PackError, AttributeError, TypeError, UnicodeEncodeError) as error:
        name = f"{type(message).__name__} v{version}"
        raise UnencodableMessage(f"{name}: {error}: {message!r:.500}") from error
    return chunks


def encoder_for(message_class: type[Message], version: int) -> Encode:
    """Return the encoder (message, chunks, parts) of a class, compiled at first use.

    It appends whole buffers to `chunks`, and to `parts` the bytes that follow the last buffer.
    """
    encode = _encoders.get((message_class, version))
    if encode is None:
        source = _EncoderSource(message_class, version, _SCOPE)
        encode = _encoders[message_class, version] = source.compile()
    return encode


_encoders: Final[dict[tuple[type[Message], int], Encode]] = {}


def append_records(
    chunks: list[Sendable], parts: list[Buffer], records: Buffer | Sequence[Sendable], size: int
) -> None:
    """Add record batches of `size` bytes in all: uncopied, or copied if they are small."""
    buffers = [records] if isinstance(records, Buffer) else records
    if size < COPY_BELOW_BYTES:
        parts.extend(contents(buffers))
        return
    chunks.append(b"".join(parts))
    parts.clear()
    chunks.extend(buffers)


def total_size(buffers: Sequence[Sendable]) -> int:
    """Return the total size of consecutive buffers."""
    return sum(map(len, buffers))


_SCOPE: Final[Mapping[str, object]] = {
    "append_records": append_records,
    "encode_uvarint": encode_uvarint,
    "pack": pack,
    "total_size": total_size,
    "UVARINTS": UVARINTS,
}


class _EncoderSource(SourceWriter):
    """Writes the source of one encoder.

    `_write`: the name of the function that appends bytes; it differs inside a tagged field, whose
    size precedes its bytes.
    """

    _write = "write"

    def compile(self) -> Encode:
        """Compile the encoder of one message."""
        self.emit(0, "def encode(message, chunks, parts):")
        self.emit(1, "write = parts.append")
        self._struct(1, self.message_class, "message")
        self._flush(1)
        return self.function("encode")

    def _flush(self, depth: int) -> None:
        """Pack the collected values: before a value of variable size or a branch, after a loop."""
        formats, expressions = self.take_fixed()
        if (formats, expressions) == ("B", "0"):
            self.emit(depth, rf'{self._write}(b"\0")')
        elif formats:
            packer = self.constant(self.name("pack_"), Packer(f">{formats}").pack)
            self.emit(depth, f"{self._write}({packer}({expressions}))")

    def _struct(self, depth: int, struct: type[Struct], expression: str) -> None:
        layout = layout_of(struct, self.version)
        for field in layout.fields:
            self._field(depth, field, f"{expression}.{field.name}")
        if layout.tagged:
            self._tagged_fields(depth, layout.tagged, expression)
        elif self.flexible:
            self.fixed("B", "0")

    def _field(self, depth: int, field: FieldLayout, expression: str) -> None:
        if field.is_array:
            self._array(depth, field, expression)
        elif field.struct is None:
            self._scalar(depth, field, expression)
        elif field.nullable:
            # KIP-893: a byte precedes a nullable struct: null is -1, in a tagged field 0.
            self._flush(depth)
            value = self.name("value")
            null = r"\xff" if field.tag is None else r"\0"
            self.emit(depth, f"{value} = {expression}")
            self.emit(depth, f"if {value} is None:")
            self.emit(depth + 1, f'{self._write}(b"{null}")')
            self.emit(depth, "else:")
            self.fixed("b", "1")
            self._struct(depth + 1, field.struct, value)
            self._flush(depth + 1)
        else:
            self._struct(depth, field.struct, expression)

    def _scalar(self, depth: int, field: FieldLayout, expression: str) -> None:
        if field.wire_type in FIXED_FORMATS:
            self.fixed(FIXED_FORMATS[field.wire_type], expression)
            return
        value, size = self.name("value"), self.name("size")
        self.emit(depth, f"{value} = {expression}")
        if field.nullable:
            self.emit(depth, f"if {value} is None:")
            self.emit(depth + 1, f'{value}, {size} = b"", -1')
            self.emit(depth, "else:")
        inner = depth + 1 if field.nullable else depth
        if field.wire_type == "string":
            self.emit(inner, f"{value} = {value}.encode()")
        is_records = field.wire_type == "records"
        if is_records:
            measure = f"total_size({value}) if type({value}) in (list, tuple) else len({value})"
            self.emit(inner, f"{size} = {measure}")
        else:
            self.emit(inner, f"{size} = len({value})")
        self._length(depth, size, "h" if field.wire_type == "string" else "i")
        self._flush(depth)
        if is_records:
            require(self._write == "write", "records are never tagged")
            self.emit(depth, f"append_records(chunks, parts, {value}, {size})")
        else:
            self.emit(depth, f"{self._write}({value})")

    def _length(self, depth: int, size: str, legacy_format: str) -> None:
        """Write a length or count, -1 for null."""
        if not self.flexible:
            self.fixed(legacy_format, size)
            return
        self._flush(depth)
        short = f"UVARINTS[{size} + 1] if {size} < {UVARINT_LIMIT - 1}"
        self.emit(depth, f"{self._write}({short} else encode_uvarint({size} + 1))")

    def _array(self, depth: int, field: FieldLayout, expression: str) -> None:
        value, size, element = self.name("value"), self.name("size"), self.name("element")
        self.emit(depth, f"{value} = {expression}")
        count = f"len({value})"
        self.emit(
            depth,
            f"{size} = " + (f"-1 if {value} is None else {count}" if field.nullable else count),
        )
        self._length(depth, size, "i")
        self._flush(depth)
        if field.struct is None and field.wire_type in FIXED_FORMATS:
            self.emit(depth, f"if {size} > 0:")
            self.emit(depth + 1, f"{self._write}(pack({array_format(field, size)}, *{value}))")
            return
        self.emit(depth, f"for {element} in {value}" + (" or ():" if field.nullable else ":"))
        if field.struct is None:
            self._scalar(depth + 1, element_of(field), element)
        else:
            self._struct(depth + 1, field.struct, element)
        self._flush(depth + 1)

    def _tagged_fields(self, depth: int, fields: Sequence[FieldLayout], expression: str) -> None:
        self._flush(depth)
        present = [self._differs(field, f"{expression}.{field.name}") for field in fields]
        self.emit(depth, f"if {' or '.join(present)}:")
        sections = self.name("sections")
        self.emit(depth + 1, f"{sections} = []")
        outer = self._write
        for field, is_present in zip(fields, present, strict=True):
            parts, section = self.name("parts"), self.name("section")
            self.emit(depth + 1, f"if {is_present}:")
            self.emit(depth + 2, f"{parts} = []")
            self._write = f"{parts}.append"
            self._field(depth + 2, field, f"{expression}.{field.name}")
            self._flush(depth + 2)
            self.emit(depth + 2, f'{section} = b"".join({parts})')
            head = f"encode_uvarint({field.tag}) + encode_uvarint(len({section}))"
            self.emit(depth + 2, f"{sections}.append({head} + {section})")
        self._write = outer
        self.emit(depth + 1, f"{outer}(encode_uvarint(len({sections})))")
        self.emit(depth + 1, f'{outer}(b"".join({sections}))')
        self.emit(depth, "else:")
        self.emit(depth + 1, rf'{outer}(b"\0")')

    def _differs(self, field: FieldLayout, expression: str) -> str:
        """Return the condition under which a tagged field is written: not its default.

        Exception: a nullable struct is always written, as Kafka's default for it is not null.
        """
        if field.struct is not None and field.nullable and not field.is_array:
            return "True"
        if field.default is None:
            return f"{expression} is not None"
        if field.default in ([], b""):
            return expression
        return f"{expression} != {field.default!r}"

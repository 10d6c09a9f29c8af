"""The encoding rules once more, as plainly as possible; and the additions of a newer peer."""

import struct
from typing import Any

from quorumlog.wire.codec.layout import FIXED_FORMATS, FieldLayout, layout_of
from quorumlog.wire.codec.message import Message, Struct
from quorumlog.wire.codec.varint import encode_uvarint

UNKNOWN_TAGS = [(9_000, b""), (2**31 - 1, b"from the future" * 20)]


class DumbEncoder:
    """`with_unknown_tags`: add unknown tagged fields to every struct."""

    def __init__(self, version: int, *, flexible: bool, with_unknown_tags: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.unknown_tags = UNKNOWN_TAGS if with_unknown_tags else []

    def struct(self, value: Struct) -> bytes:
        layout = layout_of(type(value), self.version)
        out = b"".join(self.field(field, getattr(value, field.name)) for field in layout.fields)
        if not self.flexible:
            return out
        tagged = [
            (field.tag or 0, self.field(field, getattr(value, field.name)))
            for field in layout.tagged
            if getattr(value, field.name) != field.default
        ]
        tagged += self.unknown_tags
        out += encode_uvarint(len(tagged))
        for tag, data in tagged:
            out += encode_uvarint(tag) + encode_uvarint(len(data)) + data
        return out

    def field(self, field: FieldLayout, value: Any) -> bytes:
        if not field.is_array:
            return self.element(field, value)
        if value is None:
            return self.length(-1, ">i")
        return self.length(len(value), ">i") + b"".join(
            self.element(field, one, nullable=False) for one in value
        )

    def element(self, field: FieldLayout, value: Any, *, nullable: bool | None = None) -> bytes:
        is_nullable = field.nullable if nullable is None else nullable
        if field.struct is not None:
            if not is_nullable:
                return self.struct(value)
            null = b"\xff" if field.tag is None else b"\0"
            return null if value is None else b"\x01" + self.struct(value)
        if field.wire_type in FIXED_FORMATS:
            return struct.pack(">" + FIXED_FORMATS[field.wire_type], value)
        length_format = ">h" if field.wire_type == "string" else ">i"
        if value is None:
            return self.length(-1, length_format)
        data = value.encode() if isinstance(value, str) else value
        return self.length(len(data), length_format) + bytes(data)

    def length(self, size: int, legacy_format: str) -> bytes:
        return encode_uvarint(size + 1) if self.flexible else struct.pack(legacy_format, size)


def dumb_encode(message: Message, version: int, *, with_unknown_tags: bool = False) -> bytes:
    flexible = version >= message.FLEXIBLE_SINCE
    encoder = DumbEncoder(version, flexible=flexible, with_unknown_tags=with_unknown_tags)
    return encoder.struct(message)

"""Variable length integers: 7 bits a byte, least significant first (KIP-482; Protocol Buffers)."""

from typing import Final

from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Buffer

_LAST_SHIFT: Final = 28  # an int32 length takes at most five bytes


def encode_uvarint(value: int) -> bytes:
    """Return `value` >= 0 in as few bytes as possible. Raises ValueError if it is negative."""
    if 0x3FFF < value < 0x200000:  # the size of most fetched records: a third of the loop's time
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


UVARINT_LIMIT: Final = 2048
UVARINTS: Final = tuple(encode_uvarint(value) for value in range(UVARINT_LIMIT))
"""The encodings of the small numbers. Nearly all numbers are small, and a look-up costs a tenth of
a call.
"""


def finish_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read on after `first`, a byte over 127: return (value, next position).

    Raises IndexError at the end of the buffer, MalformedFrame after more than five bytes.
    """
    if buffer[position] >= 0x80 > buffer[position + 1]:  # the size of most fetched records
        second, third = buffer[position], buffer[position + 1]
        return first & 0x7F | (second & 0x7F) << 7 | third << 14, position + 2
    value, shift = first & 0x7F, 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        if shift == _LAST_SHIFT:
            raise MalformedFrame("a length takes more than five bytes")
        shift += 7


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return one number: (value, next position). Errors as `finish_uvarint`."""
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return finish_uvarint(buffer, position + 1, first)


def skip_tagged_fields(buffer: memoryview, position: int) -> int:
    """Return the position after a section of tagged fields, all unknown (KIP-482: ignore them).

    Raises IndexError or MalformedFrame if the section is not whole.
    """
    count, position = read_uvarint(buffer, position)
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > len(buffer):
            raise MalformedFrame("a tagged field is longer than the frame")
    return position

"""Record batches by hand, right or wrong, under a checksum that is right."""

import struct

from crc32c import crc32c

from quorumlog.wire.codec.compression import Compression, compress

CRC_AT, CRC_END, LENGTH_AT = 17, 21, 8
Header = tuple[bytes, bytes | None]


def varint(value: int) -> bytes:
    """Zigzag, seven bits a byte: the definition, and nothing to make it fast."""
    written = value * 2 if value >= 0 else -value * 2 - 1
    out = []
    while written > 0x7F:
        out.append(written & 0x7F | 0x80)
        written >>= 7
    return bytes([*out, written])


def sized(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    offset_delta: int = 0,
    time_delta: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: tuple[Header, ...] = (),
) -> bytes:
    """One record in the format's own steps."""
    body = b"\0" + varint(time_delta) + varint(offset_delta) + sized(key) + sized(value)
    body += varint(len(headers)) + b"".join(sized(name) + sized(what) for name, what in headers)
    return varint(len(body)) + body


def batch(
    body: bytes,
    count: int = 1,
    *,
    compression: Compression = Compression.NONE,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    magic: int = 2,
) -> bytes:
    """A batch of whatever `body` is; it is compressed here."""
    last = count - 1 if last_offset_delta is None else last_offset_delta
    checked = struct.pack(
        ">hiqqqhii",
        attributes | compression,
        last,
        base_timestamp,
        max_timestamp,
        -1,
        -1,
        -1,
        count,
    )
    checked += compress(compression, body)
    start = struct.pack(">qiib", base_offset, len(checked) + 9, -1, magic)
    return start + struct.pack(">I", crc32c(checked)) + checked


def mended(damaged: bytes | bytearray) -> bytes:
    """Give bytes of at least a header the length and the checksum that they should have."""
    whole = bytearray(damaged)
    struct.pack_into(">i", whole, LENGTH_AT, len(whole) - 12)
    struct.pack_into(">I", whole, CRC_AT, crc32c(whole[CRC_END:]))
    return bytes(whole)

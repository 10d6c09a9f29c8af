"""The compression types of record batches, in the framing that Kafka's Java client writes.

A peer's batch may decompress to any size, so `decompress` has a limit. Libraries load at first
use. Sources: KAFKA-527 (snappy in xerial's frames), KIP-57 (lz4 frames of independent
blocks), KIP-110 (zstd).
"""

import struct
import zlib
from enum import IntEnum
from typing import Final, assert_never

from quorumlog.wire.codec.errors import BatchTooLarge, CorruptBatch
from quorumlog.wire.codec.message import Buffer

GZIP_WINDOW_BITS: Final = 31  # zlib: 15, with gzip's header and trailer
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, compatible version
XERIAL_BLOCK_BYTES: Final = 32 * 1024
ZSTD_WINDOW_BYTES_MAX: Final = 2**27
ZSTD_LEVEL_DEFAULT: Final = 3  # 0, too
LZ4_LEVEL_DEFAULT: Final = 9
LZ4_LEVEL_HIGH_MIN: Final = 3  # of the library's slow compressor
_ZSTD_REPEATED_BYTE: Final = 1  # block type: one byte, repeated
STEP_BYTES_MIN: Final = 64 * 1024
STEP_RATIO: Final = 4
_INT32: Final = struct.Struct(">i")


class Compression(IntEnum):
    """The compression type of a batch: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(compression: Compression, data: bytes, level: int | None = None) -> bytes:
    """Return `data` as the records section of a batch.

    `level`: as in Kafka's `compression.gzip.level` and the others (KIP-390); None: the default.
    """
    match compression:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            gzip_level = zlib.Z_DEFAULT_COMPRESSION if level is None else level
            compressor = zlib.compressobj(gzip_level, wbits=GZIP_WINDOW_BITS)
            return compressor.compress(data) + compressor.flush()
        case Compression.SNAPPY:
            return _compress_snappy(data)
        case Compression.LZ4:
            from lz4 import frame

            # Java's client refuses blocks that depend on each other.
            lz4: bytes = frame.compress(
                data,
                compression_level=_lz4_level(level),
                block_size=frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
            return lz4
        case Compression.ZSTD:
            import zstandard

            return zstandard.ZstdCompressor(level=level or ZSTD_LEVEL_DEFAULT).compress(data)


def _lz4_level(level: int | None) -> int:
    """Return the library's level. Kafka's default, 9, is the fast compressor, as 0 here."""
    return 0 if level in {None, LZ4_LEVEL_DEFAULT} else max(level or 0, LZ4_LEVEL_HIGH_MIN)


def decompress(compression: Compression, data: memoryview, *, size_max: int) -> bytes:
    """Return the records section as it was before `compress`.

    Raises CorruptBatch, also for bytes after the end of the stream, which only some clients would
    read; BatchTooLarge if the result is larger than `size_max` bytes.
    """
    match compression:
        case Compression.NONE:
            result = bytes(data)
        case Compression.GZIP:
            result = _decompress_gzip(data, size_max)
        case Compression.SNAPPY:
            result = _decompress_snappy(data, size_max)
        case Compression.LZ4:
            result = _decompress_lz4(data, size_max)
        case Compression.ZSTD:
            result = _decompress_zstd(data, size_max)
        case _:
            assert_never(compression)
    if len(result) > size_max:
        raise BatchTooLarge(f"the records are larger than {size_max} bytes")
    return result


def _decompress_gzip(data: memoryview, size_max: int) -> bytes:
    decompressor = zlib.decompressobj(wbits=GZIP_WINDOW_BITS)
    try:
        result = decompressor.decompress(data, size_max + 1)
    except zlib.error as error:
        raise CorruptBatch(f"gzip: {error}") from error
    if len(result) <= size_max:
        if not decompressor.eof:
            raise CorruptBatch("gzip: the stream has no end")
        _require_nothing_after(len(decompressor.unused_data))
    return result


def _decompress_lz4(data: memoryview, size_max: int) -> bytes:
    from lz4 import frame

    decompressor = frame.LZ4FrameDecompressor()
    step, room = _step_bytes(data), size_max + 1
    parts: list[bytes] = []
    given: Buffer = data
    try:
        while room > 0 and not decompressor.eof and (given or not decompressor.needs_input):
            parts.append(decompressor.decompress(given, max_length=min(step, room)))
            room -= len(parts[-1])
            given = b""
    except (RuntimeError, EOFError) as error:
        raise CorruptBatch(f"lz4: {error}") from error
    if room > 0:
        if not decompressor.eof:
            raise CorruptBatch("lz4: the frame has no end")
        _require_nothing_after(len(decompressor.unused_data or b""))
    return b"".join(parts)


def _decompress_zstd(data: memoryview, size_max: int) -> bytes:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    step, room = _step_bytes(data), size_max + 1
    parts: list[bytes] = []
    try:
        with decompressor.stream_reader(data) as reader:
            while room > 0 and (part := reader.read(min(step, room))):
                parts.append(part)
                room -= len(part)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from error
    if room > 0:
        _require_nothing_after(len(data) - _zstd_frame_end(data))
    return b"".join(parts)


def _zstd_frame_end(data: memoryview) -> int:
    """Return the end of the first frame. The library reads a cut-off frame without an error.

    The frame has been decompressed, so only its end is unchecked. Raises CorruptBatch if the end is
    missing. Source: RFC 8878, sections 3.1.1 and 3.1.1.2.
    """
    try:
        descriptor = data[4]  # after the magic number
        is_single_segment = descriptor >> 5 & 1
        position = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
        position += (is_single_segment, 2, 4, 8)[descriptor >> 6]  # the size of the content
        is_last = 0
        while not is_last:
            block = int.from_bytes(data[position : position + 3], "little")
            is_last, block_type, size = block & 1, block >> 1 & 3, block >> 3
            position += 3 + (1 if block_type == _ZSTD_REPEATED_BYTE else size)
            data[position - 1]  # raises IndexError if the block is cut off
    except IndexError as error:
        raise CorruptBatch("zstd: the frame has no end") from error
    position += 4 * (descriptor >> 2 & 1)  # a checksum
    if position > len(data):
        raise CorruptBatch("zstd: the frame has no end")
    return position


def _require_nothing_after(bytes_left: int) -> None:
    if bytes_left:
        raise CorruptBatch(f"{bytes_left} bytes after the compressed records")


def _step_bytes(data: memoryview) -> int:
    """Return the output size of one step: the libraries allocate that much memory beforehand."""
    return max(STEP_BYTES_MIN, STEP_RATIO * len(data))


def _compress_snappy(data: bytes) -> bytes:
    from cramjam import snappy

    parts = [XERIAL_HEADER]
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(data[start : start + XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, size_max: int) -> bytes:
    """Decompress both framings: xerial's (Java, most clients) and one raw block (librdkafka)."""
    if data[: len(XERIAL_MAGIC)] != memoryview(XERIAL_MAGIC):
        return _decompress_snappy_block(data, size_max)
    if data[: len(XERIAL_HEADER)] != memoryview(XERIAL_HEADER):
        raise CorruptBatch("snappy: xerial's frames of another version than 1")
    parts, position = [], len(XERIAL_HEADER)
    while position < len(data):
        if position + _INT32.size > len(data):
            raise CorruptBatch("snappy: a block without its size")
        (size,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 <= size <= len(data) - position:
            raise CorruptBatch(f"snappy: a block of {size} bytes")
        parts.append(_decompress_snappy_block(data[position : position + size], size_max))
        size_max -= len(parts[-1])
        position += size
    return b"".join(parts)


def _decompress_snappy_block(block: memoryview, size_max: int) -> bytes:
    import cramjam

    size = shift = 0  # a block starts with a varint: its size when decompressed
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > size_max:
        raise BatchTooLarge(f"snappy: a block of {size} bytes, which is more than {size_max}")
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from error

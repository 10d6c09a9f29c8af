"""Each compression gives back what it took, within a limit, and refuses damaged bytes."""

import gzip
import random
import struct

import cramjam
import pytest
import zstandard

from quorumlog.wire.codec.compression import Compression, compress, decompress
from quorumlog.wire.codec.errors import CorruptBatch

COMPRESSED = [one for one in Compression if one is not Compression.NONE]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("data", [b"", b"a", b"quorum " * 30_000])
def test_it_comes_back(compression: Compression, data: bytes) -> None:
    packed = memoryview(compress(compression, data))
    assert decompress(compression, packed, size_max=len(data)) == data


@pytest.mark.parametrize("compression", Compression)
def test_what_is_larger_than_the_limit_is_refused(compression: Compression) -> None:
    packed = memoryview(compress(compression, bytes(100_000)))
    with pytest.raises(CorruptBatch):
        decompress(compression, packed, size_max=99_999)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_truncated_or_other_bytes_are_corrupt(compression: Compression) -> None:
    packed = compress(compression, b"quorum " * 100)
    for size in range(len(packed)):
        if compression is Compression.SNAPPY and size == 16:
            continue  # xerial's frames have no end mark: these are no blocks
        with pytest.raises(CorruptBatch):
            decompress(compression, memoryview(packed[:size]), size_max=1000)
    with pytest.raises(CorruptBatch):
        decompress(compression, memoryview(b"no such format at all"), size_max=10**6)


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("size", [0, 700, 200_000])
def test_bytes_after_the_end_are_corrupt(compression: Compression, size: int) -> None:
    packed = compress(compression, b"q" * size)
    for more in (b"\0", b"nonsense", packed[-1:]):
        with pytest.raises(CorruptBatch):
            decompress(compression, memoryview(packed + more), size_max=size)


def test_xerials_frames_of_another_version_are_corrupt() -> None:
    packed = compress(Compression.SNAPPY, b"quorum")
    for at in range(8, 16):
        changed = bytearray(packed)
        changed[at] ^= 1
        with pytest.raises(CorruptBatch, match="another version"):
            decompress(Compression.SNAPPY, memoryview(changed), size_max=1000)


@pytest.mark.parametrize(
    "content", [b"", b"q", bytes(700_000), random.Random(1).randbytes(700_000)]
)
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("size_is_told", [False, True])
def test_the_end_of_every_kind_of_zstd_frame_is_found(
    content: bytes, checksum: bool, size_is_told: bool
) -> None:
    """Blocks that are raw, compressed or one byte repeated, of frames with all kinds of headers."""
    compressor = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size_is_told)
    stream = compressor.compressobj()
    for one in (compressor.compress(content), stream.compress(content) + stream.flush()):
        view = memoryview(one)
        assert decompress(Compression.ZSTD, view, size_max=len(content)) == content
        for size in (*range(20), *range(len(one) - 20, len(one))):
            if 0 <= size < len(one):
                with pytest.raises(CorruptBatch):
                    decompress(Compression.ZSTD, view[:size], size_max=len(content))


def test_snappy_is_read_with_and_without_xerials_frames() -> None:
    data = b"quorum " * 10_000
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(Compression.SNAPPY, memoryview(raw), size_max=10**6) == data
    framed = compress(Compression.SNAPPY, data)
    assert framed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (block,) = struct.unpack_from(">i", framed, 16)
    first = bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + block]))
    assert first == data[: 32 * 1024]


def test_snappy_is_refused_before_its_memory_is_taken() -> None:
    claims = b"\xff\xff\xff\xff\x07" + b"rest"  # 2 GB
    half = bytes(cramjam.snappy.compress_raw(bytes(600)))
    halves = (struct.pack(">i", len(half)) + half) * 2
    for packed in (claims, compress(Compression.SNAPPY, b"")[:16] + halves):
        with pytest.raises(CorruptBatch, match="snappy: a block of"):
            decompress(Compression.SNAPPY, memoryview(packed), size_max=1000)


def test_lz4_blocks_are_independent_as_java_wants_them() -> None:
    packed = compress(Compression.LZ4, b"quorum " * 30_000)
    assert packed[:4] == struct.pack("<I", 0x184D2204)
    assert packed[4] & 0b0010_0000


def test_gzip_is_what_others_read() -> None:
    assert gzip.decompress(compress(Compression.GZIP, b"quorum")) == b"quorum"
    packed = memoryview(gzip.compress(b"quorum"))
    assert decompress(Compression.GZIP, packed, size_max=6) == b"quorum"

import contextlib
import gzip
import struct

import cramjam
import pytest

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
def test_truncated_or_other_bytes_are_corrupt_or_short(compression: Compression) -> None:
    data = b"quorum " * 100
    packed = compress(compression, data)
    for size in range(len(packed)):
        with contextlib.suppress(CorruptBatch):
            # zstd and xerial's snappy have no end mark that we can see; the record count tells.
            assert len(decompress(compression, memoryview(packed[:size]), size_max=1000)) < 700
    with pytest.raises(CorruptBatch):
        decompress(compression, memoryview(b"no such format at all"), size_max=10**6)


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

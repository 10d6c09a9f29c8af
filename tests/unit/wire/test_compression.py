"""Compressions and batches: of every form that the format allows, and as real clients wrote them.

`real_batches.json` was taken from a broker's log: Java, librdkafka, aiokafka and kafka-python, in
each codec.
"""

import base64
import gzip
import json
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Final

import cramjam
import pytest
import zstandard
from crc32c import crc32c
from lz4 import frame

from quorumlog.wire.codec.compression import Compression, compress, decompress
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import (
    Record,
    decode_batch,
    decode_batches,
    encode_batch,
    read_header,
    validate_batch,
)

COMPRESSED = [one for one in Compression if one is not Compression.NONE]


def check_corrupt(compression: Compression, packed: bytes, size_max: int) -> None:
    with pytest.raises(CorruptBatch):
        decompress(compression, memoryview(packed), size_max=size_max)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("data", [b"", b"a", b"quorum " * 30_000])
def test_it_comes_back(compression: Compression, data: bytes) -> None:
    packed = compress(compression, data)
    assert decompress(compression, memoryview(packed), size_max=len(data)) == data
    if data:
        check_corrupt(compression, packed, len(data) - 1)  # larger than the limit


@pytest.mark.parametrize("compression", COMPRESSED)
def test_truncated_or_other_bytes_are_corrupt(compression: Compression) -> None:
    packed = compress(compression, b"quorum " * 100)
    for size in range(len(packed)):
        if compression is Compression.SNAPPY and size == 16:
            continue  # xerial's frames have no end mark: these are no blocks
        check_corrupt(compression, packed[:size], 1000)
    check_corrupt(compression, b"no such format at all", 10**6)


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("size", [0, 700, 200_000])
def test_bytes_after_the_end_are_corrupt(compression: Compression, size: int) -> None:
    packed = compress(compression, b"q" * size)
    for more in (b"\0", b"nonsense", packed[-1:]):
        check_corrupt(compression, packed + more, size)


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


# --- batches of other clients ---


REAL: Final = json.loads((Path(__file__).parents[2] / "data/real_batches.json").read_text())[
    "batches"
]
TIMES: Final = (1_700_000_000_000, 1_699_999_999_000, 1_700_000_000_001, 1_700_000_500_000)
PLAIN: Final = b"quorum " * 12_000  # more than a block of any codec
RECORDS: Final = [
    Record(0, TIMES[0], b"key0", b"quorum " * 10, (("h", b"v"), ("", None))),
    Record(1, TIMES[1], None, b"quorum " * 10),  # older than the first: a negative delta
    Record(2, TIMES[2], b"key2", None),
    Record(3, TIMES[3], b"key3", PLAIN),
]


@pytest.mark.parametrize("name", sorted(REAL))
def test_what_real_clients_write_is_read(name: str) -> None:
    data = base64.b64decode(REAL[name])
    ((header, records),) = decode_batches(data)
    assert header.compression.name.lower() == name.rpartition("-")[2]
    if name.startswith("kafka-python"):  # it was given no header without a value
        records[0] = records[0]._replace(headers=RECORDS[0].headers)
    assert records == RECORDS
    assert header.size_in_bytes == len(data)
    assert (header.base_timestamp, header.max_timestamp) == (TIMES[0], TIMES[3])


def test_real_clients_of_all_kinds_and_codecs_are_there() -> None:
    assert len(REAL) == 4 * 4 - 1  # kafka-python writes snappy with another library only
    forms = {name: base64.b64decode(batch)[61:] for name, batch in REAL.items()}
    assert forms["java-snappy"].startswith(b"\x82SNAPPY\0")
    assert not forms["confluent-snappy"].startswith(b"\x82SNAPPY\0")  # one raw block
    assert zstandard.frame_content_size(forms["java-zstd"]) == -1
    assert zstandard.frame_content_size(forms["aiokafka-zstd"]) == len(encode_batch(RECORDS)[61:])


def forms_plain() -> bytes:
    return encode_batch(RECORDS)[61:]


LZ4_FLAGS: Final = ("store_size", "content_checksum", "block_checksum", "block_linked")


@pytest.mark.parametrize("values", list(product((False, True), repeat=4)))
@pytest.mark.parametrize("block_size", [frame.BLOCKSIZE_MAX64KB, frame.BLOCKSIZE_MAX4MB])
def test_every_kind_of_lz4_frame_is_read(block_size: int, values: tuple[bool, ...]) -> None:
    flags = dict(zip(LZ4_FLAGS, values, strict=True))
    packed = frame.compress(PLAIN, block_size=block_size, **flags)
    assert decompress(Compression.LZ4, memoryview(packed), size_max=len(PLAIN)) == PLAIN
    with pytest.raises(CorruptBatch):
        decompress(Compression.LZ4, memoryview(packed), size_max=len(PLAIN) - 1)
    for size in (*range(20), len(packed) - 1):
        with pytest.raises(CorruptBatch):
            decompress(Compression.LZ4, memoryview(packed[:size]), size_max=len(PLAIN))


@pytest.mark.parametrize(
    ("write_content_size", "write_checksum"), list(product((False, True), repeat=2))
)
def test_every_kind_of_zstd_frame_is_read(write_content_size: bool, write_checksum: bool) -> None:
    def compressor(level: int = 3) -> zstandard.ZstdCompressor:
        return zstandard.ZstdCompressor(
            level=level, write_content_size=write_content_size, write_checksum=write_checksum
        )

    stream = compressor().compressobj()  # in blocks, the size not known beforehand
    begin = stream.compress(PLAIN[:9]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    for packed in (
        *(compressor(level).compress(PLAIN) for level in (1, 3, 19)),
        begin + stream.compress(PLAIN[9:]) + stream.flush(),
    ):
        assert decompress(Compression.ZSTD, memoryview(packed), size_max=len(PLAIN)) == PLAIN


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_bomb_takes_no_more_memory_than_is_allowed(compression: Compression) -> None:
    packers: dict[Compression, Callable[[], Any]] = {
        Compression.GZIP: lambda: zlib.compressobj(wbits=31),
        Compression.LZ4: frame.LZ4FrameCompressor,
        Compression.ZSTD: lambda: zstandard.ZstdCompressor().compressobj(),
    }
    packer = packers[compression]()
    begin = packer.begin() if compression is Compression.LZ4 else b""
    packed = memoryview(
        begin + b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    )
    assert len(packed) < 1 << 20
    allowed = 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(compression, packed, size_max=allowed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * allowed


def batch_of(body: bytes, **fields: int) -> bytes:
    """A batch with a good checksum, and a header of whatever is asked."""
    values = {
        "attributes": 0,
        "last_offset_delta": 0,
        "base_timestamp": 0,
        "max_timestamp": 0,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": 1,
    } | fields
    checked = struct.pack(">hiqqqhii", *values.values()) + body
    return struct.pack(">qiibI", 0, len(checked) + 9, 0, 2, crc32c(checked)) + checked


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_that_compaction_has_emptied_is_a_batch(compression: Compression) -> None:
    for body in (b"", compress(compression, b"")):
        data = batch_of(body, attributes=compression, last_offset_delta=6, record_count=0)
        validate_batch(data, 0, read_header(data))
        ((header, records),) = decode_batches(data)
        assert (records, header.next_offset) == ([], 7)


def test_control_and_transactional_batches_are_read() -> None:
    marker = Record(0, 5, b"\0\0\0\1", b"\0\0\0\0\0\7")
    data = encode_batch([marker], is_control=True, is_transactional=True, producer_id=4)
    header = read_header(data)
    assert (header.is_control, header.is_transactional, header.producer_id) == (True, True, 4)
    assert decode_batch(data) == [marker]


def test_the_widest_numbers_are_read() -> None:
    low, high = -(2**63), 2**63 - 1
    for base, time in ((0, high), (0, low), (high, 0), (-1, high), (low, -1)):
        records = [Record(0, base, None, None), Record(2**31 - 1, time, None, None)]
        data = encode_batch(records)
        assert decode_batch(data) == records
        assert read_header(data).last_offset_delta == 2**31 - 1


def test_more_headers_than_one_byte_can_count() -> None:
    headers = tuple((f"name-{number}", None if number % 2 else b"x") for number in range(300))
    records = [Record(0, 0, b"", b"", headers)]
    assert decode_batch(encode_batch(records)) == records

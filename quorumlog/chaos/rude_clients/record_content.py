"""The records of raw clients: every value is sent once, and all parts of a record are drawn."""

from functools import cache
from random import Random
from typing import Final
from zlib import crc32

from quorumlog.wire.codec.compression import Compression, compress
from quorumlog.wire.codec.records import Record

NOT_OURS: Final = -1
_FIRST_MS: Final = 1_000_000_000_000
_SPREAD_MS: Final = 10_000
_PADDING: Final = (0, 0, 0, 20, 400)
_KEYS: Final = (None, b"", b"k", b"\x00\xff", b"key" * 20)
_HEADER_KEYS: Final = ("", "trace", "trace", "\N{SNOWMAN}")
_HEADER_VALUES: Final = (None, b"", b"1", b"\x00" * 30)


def drawn_record(rng: Random, index: int, value: int) -> Record:
    """Return a record at an index of its batch; its value is the number, after zeros."""
    headers = tuple(
        (rng.choice(_HEADER_KEYS), rng.choice(_HEADER_VALUES)) for _ in range(rng.randrange(4))
    )
    return Record(
        offset=index,
        timestamp_ms=_FIRST_MS + value * 10 + rng.randrange(_SPREAD_MS),
        key=rng.choice(_KEYS),
        value=str(value).zfill(rng.choice(_PADDING)).encode(),
        headers=headers,
    )


def value_of(record: Record) -> int:
    """Return the number that a record carries, or NOT_OURS."""
    text = record.value or b""
    return int(text) if text.isdigit() else NOT_OURS


def digest_of(record: Record) -> str:
    """Return the checksums of key, headers, timestamp and value."""
    parts = (record.key, record.headers, record.timestamp_ms, record.value)
    return ":".join(f"{crc32(repr(part).encode()):x}" for part in parts)


@cache
def installed_codecs() -> tuple[Compression, ...]:
    """Return the compression types whose libraries are installed."""
    return tuple(codec for codec in Compression if _is_installed(codec))


def _is_installed(codec: Compression) -> bool:
    try:
        compress(codec, b"0")
    except ImportError:
        return False
    return True

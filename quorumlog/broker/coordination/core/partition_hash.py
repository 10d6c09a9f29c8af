"""The partition of an internal topic for a group id or a transactional id, as in Java."""

import codecs
from functools import lru_cache
from typing import Final

CACHED_MAX: Final = 4096  # groups and transactional ids return again and again
CACHED_CHARS_MAX: Final = 300  # of an id; clients may send ever new ids of 32 KB
# Looked up at import: Python reads the codec from a file, which fails without free descriptors.
_UTF16: Final = codecs.getencoder("utf-16-be")


def java_string_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, as a signed 32-bit number."""
    utf16, _ = _UTF16(text, "surrogatepass")
    value = 0
    for index in range(0, len(utf16), 2):
        value = (31 * value + (utf16[index] << 8 | utf16[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(key: str, partitions: int) -> int:
    """Return the partition of a key. As in Java, the smallest hash has the absolute value 0."""
    find = _cached if len(key) <= CACHED_CHARS_MAX else _partition_for
    return find(key, partitions)


def _partition_for(key: str, partitions: int) -> int:
    value = java_string_hash(key)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


_cached: Final = lru_cache(maxsize=CACHED_MAX)(_partition_for)

"""Decodes a run of records that differ only in their contents, times and consecutive offsets.

Producers often send records of one size. Then each field stands at one distance from the start of
its record, and a slice with that stride has the field of every record: a few operations in C
replace the walk over each record. Source: the record format of KIP-98.
"""

from collections.abc import Iterable
from itertools import repeat
from typing import Final

Fields = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""The fields of a Record."""

RUN_MIN: Final = 8  # below, a walk is as fast
SMALL: Final = tuple(byte >> 1 ^ -(byte & 1) for byte in range(0x80))
"""The zigzag numbers of one byte."""

_ONE_BYTE: Final = 64  # offset deltas below take one byte, below the next two
_TWO_BYTES: Final = 8192
_FIRST: Final = bytes(
    delta << 1 & 0x7F | (0 if delta < _ONE_BYTE else 0x80) for delta in range(_TWO_BYTES)
)
_SECOND: Final = bytes(delta >> 6 for delta in range(_TWO_BYTES))
_NULL: Final = 1  # the length -1, zigzag encoded


def decode_run(
    data: bytes, start: int, left: int, base_offset: int, base_timestamp: int
) -> tuple[list[Fields], int] | None:
    """Return the run of records at `start`, at most `left`, and the position after it.

    None decides nothing: there is no such run, or the bytes are no records.
    """
    try:
        return _decode_run(data, start, left, base_offset, base_timestamp)
    except IndexError:
        return None


def _decode_run(
    data: bytes, start: int, left: int, base_offset: int, base_timestamp: int
) -> tuple[list[Fields], int] | None:
    size, body = _length(data, start)
    stride = body - start + size
    count = min(left, (len(data) - start) // stride) if size > 0 else 0
    if count < RUN_MIN:
        return None
    time_at = body + 1  # after a byte of attributes
    offset_at = time_at + 1
    key_at = offset_at + (1 if data[offset_at] < 0x80 else 2)
    key_size, key = _length(data, key_at)
    value_at = key + max(key_size, 0)
    value_size, value = _length(data, value_at)
    tail = value + max(value_size, 0)
    if tail + 1 != start + stride or data[tail]:
        return None
    for at in (*range(start, body), *range(key_at, key), *range(value_at, value), tail):
        column = data[at : at + (count - 1) * stride + 1 : stride]
        count -= len(column.lstrip(column[:1]))  # the lengths are those of the first record
    first = _number(data, offset_at)
    count = min(count, (_ONE_BYTE if key_at == offset_at + 1 else _TWO_BYTES) - first)
    end = start + count * stride
    times = data[time_at:end:stride]
    is_run = (
        count >= RUN_MIN
        and data[offset_at:end:stride] == _FIRST[first : first + count]
        and (
            key_at == offset_at + 1
            or data[offset_at + 1 : end : stride] == _SECOND[first : first + count]
        )
        and times.isascii()  # one byte each
    )
    if not is_run:
        return None
    offsets = range(base_offset + first, base_offset + first + count)
    timestamps = [base_timestamp + SMALL[byte] for byte in times]
    keys = _contents(data, key, key_size, end, stride)
    values = _contents(data, value, value_size, end, stride)
    return list(zip(offsets, timestamps, keys, values, repeat(()))), end


def _contents(data: bytes, first: int, size: int, end: int, stride: int) -> Iterable[bytes | None]:
    if size < 0:
        return repeat(None)
    return [data[at : at + size] for at in range(first, end, stride)]


def _number(data: bytes, at: int) -> int:
    """Return the zigzag number of one or two bytes; IndexError if it is longer or negative."""
    byte = data[at]
    if byte >= 0x80:
        byte += data[at + 1] - 1 << 7
    if byte & 1 or byte >> 1 >= _TWO_BYTES:
        raise IndexError
    return byte >> 1


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return the length at this position, -1 for null, and the position after it."""
    if data[at] == _NULL:
        return -1, at + 1
    return _number(data, at), at + (1 if data[at] < 0x80 else 2)

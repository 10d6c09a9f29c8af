"""Runs of records that differ only in their contents, time deltas and offset deltas.

A producer often sends records of one size. The first record determines all bytes of the others
except keys, values and times, so that one comparison checks up to RUN_MAX records.
Source: the record format of KIP-98.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from struct import Struct as Packer
from typing import Final, NamedTuple

from quorumlog.wire.codec.records import SMALL_VARINTS
from quorumlog.wire.codec.varint import encode_uvarint

Run = tuple[int, int, int, int, bool]
"""(record count, position after the run, least time delta, largest, whether keys are null)."""

Split = Callable[[memoryview, int], tuple[bytes, ...]]
"""From data, and the start of the records in it, to the pieces of their frames."""

RUN_MAX: Final = 64  # the offset deltas 0 to 63 take one byte each
_WORTH: Final = 8  # a run must be 1/8 of the compared records: else a walk is cheaper
CACHED_MAX: Final = 256  # a producer's batches resemble each other
_NULL: Final = 1  # the length -1, zigzag encoded

_ONLY: Final = bytes(range(0, 0x80, 2))  # the one byte of a number from 0 to 63
_FIRST: Final = bytes(range(0x80, 0x100, 2))  # the first byte of a larger number


class _Frames(NamedTuple):
    """The expected bytes around the keys and values of consecutive records."""

    split: Split
    expected: bytes
    time_delta: int  # zigzag encoded
    has_null_key: bool


def find_run(data: memoryview, start: int, index: int, length: int) -> Run | None:
    """Return the run that begins at `start` with record `index`: of `length` records at most.

    Its records are valid. None decides nothing: a walk is cheaper, or the records have headers,
    null values, or large keys or values. Raises IndexError if the data ends too early.
    """
    size, body = data[start], start + 1
    if size >= 0x80:
        size, body = size + (data[body] - 1 << 7), body + 1
    record_size = body - start + (size >> 1)
    end = start + record_size * length
    if end > len(data):
        length = (len(data) - start) // record_size
        end = start + record_size * length
    if length < 2 or data[start] != data[start + record_size]:
        return None
    offset_at = body + (2 if data[body + 1] < 0x80 else 3)  # behind attributes and the time
    offset_size = 1 if index < 64 else 2 if index < 8192 else 3  # below a million: ITEMS_MAX
    head = data[start : offset_at + offset_size + 1].tobytes()
    frames = _frames(head, index, length)
    if frames is None:
        return None
    split, expected, time, has_null_key = frames
    found = b"".join(split(data, start))
    if found == expected:
        delta = time >> 1 ^ -(time & 1)
        return length, end, delta, delta, has_null_key
    times = _times_of_leading(found, expected, length, range(body + 1 - start, offset_at - start))
    if len(times) * _WORTH < length:
        return None
    return len(times), start + record_size * len(times), min(times), max(times), has_null_key


@lru_cache(maxsize=CACHED_MAX)
def _frames(head: bytes, index: int, length: int) -> _Frames | None:
    """Return the frames of records [index, index + length); the first begins with `head`.

    `head` ends with the length of the key. None if such records are no run that this module finds.
    """
    is_short = head[0] < 0x80
    size = head[0] if is_short else head[0] + (head[1] - 1 << 7)
    time_at = 2 if is_short else 3
    time = head[time_at]
    if time >= 0x80:
        time += head[time_at + 1] - 1 << 7
    key_size = head[-1] >> 1  # 0 for a null key
    record_size = time_at - 1 + (size >> 1)
    # After the head: the key, the length of the value, the value, and no headers.
    value_size = record_size - len(head) - key_size - 2
    if value_size >= 64:
        value_size -= 1
    if (
        length < 2
        or size & 1
        or head[time_at - 1]  # attributes
        or time >> 14  # more than two bytes
        or head[-1] >= 0x80
        or (head[-1] & 1 and head[-1] != _NULL)
        or not 0 <= value_size < len(SMALL_VARINTS)
    ):
        return None
    tail = SMALL_VARINTS[value_size]
    offsets = [encode_uvarint(2 * delta) for delta in range(index, index + length)]
    before, behind = head[: -1 - len(offsets[0])], head[-1:] + tail + b"\0"
    expected = b"".join([before + offset + behind for offset in offsets])
    split = _splitter(len(head), key_size, len(tail), value_size, length)
    return _Frames(split, expected, time, head[-1] == _NULL)


@lru_cache(maxsize=CACHED_MAX)
def _splitter(head_size: int, key_size: int, tail_size: int, value_size: int, length: int) -> Split:
    """Return a function that extracts the frames of `length` records by one `struct` format."""
    skip = f"{key_size}x{tail_size}s{value_size}x"
    return Packer(
        f"{head_size}s" + f"{skip}{1 + head_size}s" * (length - 1) + f"{skip}1s"
    ).unpack_from


def _times_of_leading(found: bytes, expected: bytes, length: int, places: range) -> list[int]:
    """Return the time deltas of the leading records that have the expected frames."""
    width = len(expected) // length
    masked = bytearray(expected)
    for place in places:
        masked[place::width] = found[place::width]
    right = length
    if found != masked:
        ends = range(width, len(found) + 1, width)
        right = bisect_left(ends, True, key=lambda end: found[:end] != masked[:end])
    low, *more = (found[place::width][:right] for place in places)
    if not more:
        return [] if low.translate(None, _ONLY) else [a >> 1 for a in low]
    (high,) = more
    if low.translate(None, _FIRST) or not high.isascii():
        return []
    return [a + (b - 1 << 7) >> 1 for a, b in zip(low, high, strict=True)]

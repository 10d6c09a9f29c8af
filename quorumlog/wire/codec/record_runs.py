"""Runs of records that differ in nothing but their contents, times and offset deltas.

A producer often sends records of one size. The first of them tells all bytes of the others but the
contents of their keys and values, so that one comparison checks up to RUN_MAX records.
Source: the record format of KIP-98.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from struct import Struct as Packer
from typing import Final, NamedTuple

from quorumlog.wire.codec.records import SMALL_VARINTS

Run = tuple[int, int, int, int, bool]
"""(records, position after them, least time delta, largest, whether their keys are null)."""

RUN_MAX: Final = 64  # so many offset deltas take one byte
_WORTH: Final = 8  # one in so many of the records that are compared; else to walk is cheaper
_NULL: Final = 1  # the length -1, as it is written

# The bytes of the numbers from 0 on, as they are written: up to 63 in one byte, 8191 in two.
_ONLY: Final = bytes(range(0, 0x80, 2))
_FIRST: Final = bytes(range(0x80, 0x100, 2))


class _Frames(NamedTuple):
    """What some records in a row have around their keys and values, as they should be."""

    split: Callable[[memoryview, int], tuple[bytes, ...]]
    """From all bytes of the records, and where they start, to the pieces of their frames."""
    expected: bytes
    time_delta: int  # as it is written
    has_null_key: bool


def find_run(data: memoryview, start: int, index: int, length: int) -> Run | None:
    """Return the run that begins at `start` with record `index`: of `length` records at most.

    They are all right. None says nothing of them: to walk is cheaper, or they have what no run has
    here: headers, null values, large keys or values. Raises IndexError if the data ends too early.
    """
    size, body = data[start], start + 1
    if size >= 0x80:
        size, body = size + (data[body] - 1 << 7), body + 1
    record_size = body - start + (size >> 1)
    if start + record_size * length > len(data):
        length = (len(data) - start) // record_size
    if length < 2 or data[start] != data[start + record_size]:
        return None
    offset_at = body + (2 if data[body + 1] < 0x80 else 3)  # behind attributes and the time
    head = data[start : offset_at + (2 if index < RUN_MAX else 3)].tobytes()
    frames = _frames(head, offset_at - start, index, length)
    if frames is None:
        return None
    split, expected, time, has_null_key = frames
    found = b"".join(split(data, start))
    if found == expected:
        delta = time >> 1 ^ -(time & 1)
        return length, start + record_size * length, delta, delta, has_null_key
    times = _times_of_leading(found, expected, length, range(body + 1 - start, offset_at - start))
    if len(times) * _WORTH < length:
        return None
    end = start + record_size * len(times)
    return len(times), end, min(times), max(times), has_null_key


@lru_cache(maxsize=256)  # a producer's batches resemble each other
def _frames(head: bytes, offset_at: int, index: int, length: int) -> _Frames | None:
    """Return the frames of `length` records, the first of which begins with `head`.

    That ends with the length of its key; its offset delta is at `offset_at`. None if there is no
    run of such records, or one that is not looked for.
    """
    is_short = head[0] < 0x80
    size = head[0] if is_short else head[0] + (head[1] - 1 << 7)
    time_at = 2 if is_short else 3
    time = head[time_at]
    if time >= 0x80:
        time += head[time_at + 1] - 1 << 7
    key_size = head[-1] >> 1  # 0 if it is null
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
        or index + length > len(SMALL_VARINTS)
    ):
        return None
    tail = SMALL_VARINTS[value_size]
    skip = f"{key_size}x{len(tail)}s{value_size}x"
    split = Packer(f"{len(head)}s" + f"{skip}{1 + len(head)}s" * (length - 1) + f"{skip}1s")
    columns = [
        head[:offset_at] + SMALL_VARINTS[delta] + head[-1:] + tail + b"\0"
        for delta in range(index, index + length)
    ]
    return _Frames(split.unpack_from, b"".join(columns), time, head[-1] == _NULL)


def _times_of_leading(found: bytes, expected: bytes, length: int, places: range) -> list[int]:
    """Return the time deltas of as many records as are right, from the first on."""
    width = len(expected) // length
    masked = bytearray(expected)
    for place in places:
        masked[place::width] = found[place::width]
    right = length
    if found != masked:
        starts = range(width, len(found) + 1, width)
        right = bisect_left(starts, True, key=lambda end: found[:end] != masked[:end])
    low, *high = (found[place::width][:right] for place in places)
    if high:
        is_right = high[0].isascii() and not low.translate(None, _FIRST)
        return (
            [(b - 1 << 7) + a >> 1 for a, b in zip(low, high[0], strict=True)] if is_right else []
        )
    return [] if low.translate(None, _ONLY) else [a >> 1 for a in low]

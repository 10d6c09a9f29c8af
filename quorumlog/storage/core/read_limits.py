"""Limits, result and progress callback of a read of a log."""

from collections.abc import Callable
from typing import NamedTuple

from quorumlog.wire.codec.identifiers import Offset

NoteRead = Callable[[int], None]
"""Receives the number of bytes read."""


class ReadLimits(NamedTuple):
    """Limits of one read: see `Log.read`."""

    max_bytes: int
    end_offset: int
    at_least_one: bool = True
    may_wait: bool = True


class ReadResult(NamedTuple):
    """Whole batches, and the offset of the next read."""

    records: bytes | bytearray
    next_offset: Offset

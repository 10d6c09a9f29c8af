"""What a read of a log returns, and how a long read tells its progress."""

from collections.abc import Callable
from typing import NamedTuple

from quorumlog.wire.codec.identifiers import Offset

NoteRead = Callable[[int], None]
"""Is told how many bytes were read."""


class ReadLimits(NamedTuple):
    """What a read may return: see `Log.read`."""

    max_bytes: int
    end_offset: int
    at_least_one: bool = True
    may_wait: bool = True


class ReadResult(NamedTuple):
    """Whole batches, and the offset to read on from."""

    records: bytes | bytearray
    next_offset: Offset

"""What a read of a log returns, and how a long read tells its progress."""

from collections.abc import Callable
from typing import NamedTuple

from quorumlog.wire.codec.identifiers import Offset

NoteRead = Callable[[int], None]
"""Is told how many bytes were read."""


class ReadResult(NamedTuple):
    """Whole batches, and the offset to read on from."""

    records: bytes
    next_offset: Offset

"""The entries of a segment's indexes; on request, compared with its batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from quorumlog.cli.dump.contents import Asked, Item, Problem
from quorumlog.storage.core.aborted_transactions import ENTRY_BYTES as TRANSACTION_ENTRY_BYTES
from quorumlog.storage.core.aborted_transactions import (
    HEAD_BYTES,
    VERSION,
    CorruptTransactionIndex,
    decode_entries,
    split_index,
)
from quorumlog.storage.core.log_index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.batch_scan import scan_batches
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import HEADER_BYTES, MAGIC, BatchHeader, read_header

OFFSET_MAX: Final = 2**63 - 1


class LogFile:
    """The `.log` file beside an index, open to read the headers of its batches."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file: Final = file
        self._path: Final = path
        self._size: Final = size

    def header_at(self, position: int) -> BatchHeader | None:
        """Return the header of the batch at byte `position`; None if no batch begins there."""
        try:
            header = read_header(self._pread(HEADER_BYTES, position))
        except CorruptBatch:
            return None
        return header if header.magic == MAGIC else None

    def headers(self) -> Iterator[BatchHeader]:
        """Yield all headers, in order. Raises StorageError where there is no batch."""
        for _, header in scan_batches(str(self._path), 0, self._size, self._pread):
            yield header

    def _pread(self, size: int, position: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)


def read_offset_index(
    content: bytes, base_offset: int, asked: Asked, log: LogFile | None
) -> Iterator[Item | Problem]:
    """Yield the entries of an `.index` file: the last offset of a batch, and its position.

    With `log`, also the entries that contradict it.
    """
    index = OffsetIndex.decode_rising(base_offset, _used(content, OFFSET_ENTRY_BYTES))
    for slot, entry in enumerate(index.entries()):
        if not asked.only_index_faults:
            yield {"offset": entry.last_offset, "position": entry.position}
        found = None if log is None else log.header_at(entry.position)
        if log is not None and (found is None or found.last_offset != entry.last_offset):
            ends = "no batch begins" if found is None else f"a batch ends at {found.last_offset}"
            what = f"offset {entry.last_offset}: at byte {entry.position} of the log {ends}"
            yield Problem(slot * OFFSET_ENTRY_BYTES, what)
    yield from _rest(content, len(index) * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)


def read_time_index(
    content: bytes, base_offset: int, asked: Asked, log: LogFile | None
) -> Iterator[Item | Problem]:
    """Yield the entries of a `.timeindex` file: the largest timestamp so far, and its offset.

    With `log`, also the entries that contradict it.
    """
    index = TimeIndex.decode_rising(base_offset, _used(content, TIME_ENTRY_BYTES))
    headers = None if log is None else _Cursor(log.headers())
    for slot, entry in enumerate(index.entries()):
        if not asked.only_index_faults:
            yield {"timestamp_ms": entry.timestamp, "offset": entry.last_offset}
        if headers is None:
            continue
        try:
            fault = _fault_of(entry, headers)
        except StorageError as error:
            yield Problem(slot * TIME_ENTRY_BYTES, f"not compared from here on: {error}")
            headers = None
        else:
            if fault is not None:
                yield Problem(slot * TIME_ENTRY_BYTES, fault)
    yield from _rest(content, len(index) * TIME_ENTRY_BYTES, TIME_ENTRY_BYTES)


def read_transaction_index(
    content: bytes, base_offset: int, asked: Asked
) -> Iterator[Item | Problem]:
    """Yield the entries of a `.txnindex` file: the aborted transactions that end in the segment."""
    least = base_offset
    try:
        split_index(content)
    except CorruptTransactionIndex as error:
        yield Problem(0, str(error))
    has_head = content[:2] != VERSION.to_bytes(2)
    for position in range(HEAD_BYTES if has_head else 0, len(content), TRANSACTION_ENTRY_BYTES):
        entry = content[position : position + TRANSACTION_ENTRY_BYTES]
        try:
            (aborted,) = decode_entries(entry, least, OFFSET_MAX)
        except CorruptTransactionIndex as error:
            yield Problem(position, f"{error}; {len(content) - position} bytes are not read")
            return
        if not asked.only_index_faults:
            yield aborted._asdict()
        least = aborted.last_offset + 1


class _Cursor:
    """Reads the batches of a log in order, and stays at the last batch that it found."""

    def __init__(self, headers: Iterator[BatchHeader]) -> None:
        self._headers: Final = headers
        self._at: BatchHeader | None = None

    def find(self, offset: int) -> BatchHeader | None:
        """Return the first batch that ends at or behind `offset`. Raises StorageError."""
        if self._at is None or self._at.last_offset < offset:
            self._at = next((one for one in self._headers if one.last_offset >= offset), None)
        return self._at


def _fault_of(entry: TimeEntry, headers: _Cursor) -> str | None:
    """Return why the batch at the entry's offset contradicts the entry, or None."""
    found = headers.find(entry.last_offset)
    if found is None:
        return f"offset {entry.last_offset} is not in the log"
    if found.base_offset > entry.last_offset or found.max_timestamp != entry.timestamp:
        told = f"the batch [{found.base_offset}, {found.last_offset}]"
        return f"offset {entry.last_offset}: {told} has the timestamp {found.max_timestamp}"
    return None


def _used(content: bytes, entry_bytes: int) -> bytes:
    """Return the content without trailing zero entries."""
    used = len(content.rstrip(b"\0"))
    return content[: used + -used % entry_bytes]


def _rest(content: bytes, whole: int, entry_bytes: int) -> Iterator[Problem]:
    """Yield the problem of the bytes behind the last valid entry, which ends at byte `whole`."""
    rest = content[whole:]
    if not rest:
        return
    if not any(rest):
        what = f"{len(rest)} zeros: preallocated space, or entries lost in a crash"
    elif len(rest) < entry_bytes:
        what = f"{len(rest)} bytes are left, fewer than an entry of {entry_bytes}"
    else:
        what = f"the entries do not increase; {len(rest)} bytes are not read"
    yield Problem(whole, what)

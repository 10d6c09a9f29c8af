"""The aborted transactions of a log: for `.txnindex` files, and for fetches of `read_committed`.

A file has a header: int16 version, uint32 CRC32C of all bytes that follow, int64 offset of the
newest abort marker in the segments before. An entry has 34 bytes, as Kafka's
`AbortedTxn` (version 0): int16 version, int64 producer id, first offset, offset of the marker, last
stable offset once the marker was written. The entries are in the order of their markers. Byte
layout: docs/log-format.md.

# DEVIATION: Kafka's file has no header: a missing or damaged file shows aborted records.
# docs/decisions/0026-checkpoint-checksums.md
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

SUFFIX: Final = ".txnindex"
VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = _ENTRY.size
NONE_ABORTED: Final = -1  # in the place of a marker's offset
_HEAD_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_NEWEST_BEFORE: Final = struct.Struct(">q")
HEAD_BYTES: Final = _HEAD.size + _NEWEST_BEFORE.size
_LAST_OFFSET: Final = struct.Struct(">q")
_LAST_OFFSET_AT: Final = 18


class CorruptTransactionIndex(ValueError):
    """The file is not whole: its entries are rebuilt from the log."""


class AbortedTransaction(NamedTuple):
    """Offsets [first_offset, last_offset]; `last_offset` is the marker's.

    `last_stable_offset`: the first offset of the oldest transaction still open once the marker was
    written, or the offset behind the marker. Transactions that end later begin there or above.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_index(aborted: Iterable[AbortedTransaction], newest_before: int) -> bytes:
    """Return the content of a file. `newest_before`: the last abort marker in earlier segments."""
    entries = b"".join([_ENTRY.pack(VERSION, *one) for one in aborted])
    body = _NEWEST_BEFORE.pack(newest_before) + entries
    return _HEAD.pack(_HEAD_VERSION, crc32c(body)) + body


def split_index(content: bytes) -> tuple[int, bytes]:
    """Return `newest_before`, and the bytes of the entries. Raises CorruptTransactionIndex.

    A file of Kafka, or of a former release, begins with its first entry. Such a file without
    entries may have been cut.
    """
    if len(content) >= HEAD_BYTES:
        version, checksum = _HEAD.unpack_from(content)
        if version == VERSION:
            return NONE_ABORTED, content
        body = content[_HEAD.size :]
        if version == _HEAD_VERSION and checksum == crc32c(body):
            (newest_before,) = _NEWEST_BEFORE.unpack_from(body)
            return newest_before, body[_NEWEST_BEFORE.size :]
    raise CorruptTransactionIndex(f"{len(content)} bytes without their checksum")


def decode_entries(content: bytes, base_offset: int, end_offset: int) -> list[AbortedTransaction]:
    """Read entries of markers in [base_offset, end_offset). Raises CorruptTransactionIndex."""
    if len(content) % ENTRY_BYTES:
        raise CorruptTransactionIndex(f"{len(content)} bytes")
    aborted: list[AbortedTransaction] = []
    least = base_offset
    for version, *fields in _ENTRY.iter_unpack(content):
        one = AbortedTransaction(*fields)
        if version != VERSION:
            raise CorruptTransactionIndex(f"version {version}")
        if not least <= one.last_offset < end_offset or one.first_offset > one.last_offset:
            raise CorruptTransactionIndex(f"{one} in [{least}, {end_offset})")
        least = one.last_offset + 1
        aborted.append(one)
    return aborted


def _last_offset(entry: bytes) -> int:
    offset: int
    (offset,) = _LAST_OFFSET.unpack_from(entry, _LAST_OFFSET_AT)
    return offset


class AbortedTransactions:
    """The aborted transactions of one log, in memory: about 75 bytes each.

    Invariant: they are in the order of their markers, which are below the log's end.
    One thread changes them while another may read: removals replace the list, and never shorten
    the list that a reader may hold.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = [_ENTRY.pack(VERSION, *one) for one in aborted]

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, aborted: AbortedTransaction) -> None:
        """Append a transaction; its marker is the newest of all."""
        self._entries.append(_ENTRY.pack(VERSION, *aborted))

    def newest_below(self, offset: int) -> int:
        """Return the newest marker below `offset`; NONE_ABORTED if there is none."""
        entries = self._entries
        slot = bisect_left(entries, offset, key=_last_offset)
        return _last_offset(entries[slot - 1]) if slot else NONE_ABORTED

    def within(self, base_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the transactions whose markers are in [base_offset, end_offset)."""
        entries = self._entries
        start = bisect_left(entries, base_offset, key=_last_offset)
        end = bisect_left(entries, end_offset, start, key=_last_offset)
        return [_decoded(entry) for entry in entries[start:end]]

    def reaching_into(self, from_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the transactions whose records a read of [from_offset, end_offset) leaves out."""
        found: list[AbortedTransaction] = []
        entries = self._entries
        for slot in range(bisect_left(entries, from_offset, key=_last_offset), len(entries)):
            aborted = _decoded(entries[slot])
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                break
        return found

    def cut(self, end_offset: int) -> None:
        """Remove the transactions whose markers are at or above `end_offset`."""
        self._entries = self._entries[: bisect_left(self._entries, end_offset, key=_last_offset)]

    def drop_below(self, base_offset: int) -> None:
        """Remove the transactions whose markers are below `base_offset`."""
        self._entries = self._entries[bisect_left(self._entries, base_offset, key=_last_offset) :]

    def replace(
        self, base_offset: int, end_offset: int, aborted: Sequence[AbortedTransaction]
    ) -> None:
        """Replace the transactions whose markers are in [base_offset, end_offset)."""
        start = bisect_left(self._entries, base_offset, key=_last_offset)
        end = bisect_left(self._entries, end_offset, start, key=_last_offset)
        new = [_ENTRY.pack(VERSION, *one) for one in aborted]
        self._entries = [*self._entries[:start], *new, *self._entries[end:]]


def _decoded(entry: bytes) -> AbortedTransaction:
    return AbortedTransaction._make(_ENTRY.unpack(entry)[1:])

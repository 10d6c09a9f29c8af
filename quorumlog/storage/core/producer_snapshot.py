"""The bytes of a `<offset>.snapshot` file: the producer state of a log that ends at that offset.

Kafka's format, version 1 (`ProducerStateManager`): int16 version, uint32 CRC32C of all bytes that
follow, int32 count, then 46 bytes per entry. Byte layout: docs/log-format.md.

# DEVIATION: Kafka writes one entry per producer, for its last batch. We write up to five, the
# oldest first: Kafka uses the last entry of a producer.
# docs/decisions/0027-producer-snapshots.md
# DEVIATION: the offset of the newest abort marker, int64, follows the entries if there is a marker.
# docs/decisions/0026-checkpoint-checksums.md
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from quorumlog.storage.core.aborted_transactions import NONE_ABORTED

VERSION: Final = 1
NO_SEQUENCE: Final = -1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch,
# first offset of the open transaction
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_NEWEST_ABORTED: Final = struct.Struct(">q")


class CorruptSnapshot(ValueError):
    """The file is not whole: the producer state is rebuilt from the log."""


class SnapshotEntry(NamedTuple):
    """One batch of a producer; `last_sequence` is -1 if the log has only its markers."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int  # -1 without a batch
    offset_delta: int  # from the batch's first record to its last
    timestamp: int  # ms: of the producer's last batch or marker
    coordinator_epoch: int = -1
    transaction_offset: int = -1


def encode_snapshot(entries: Iterable[SnapshotEntry], newest_aborted: int) -> bytes:
    """Return the content of the file."""
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    if newest_aborted != NONE_ABORTED:
        body += _NEWEST_ABORTED.pack(newest_aborted)
    return _HEAD.pack(VERSION, crc32c(body)) + body


def decode_snapshot(content: bytes) -> tuple[Sequence[SnapshotEntry], int]:
    """Return the entries, and the newest abort marker or NONE_ABORTED. Raises CorruptSnapshot."""
    if len(content) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshot(f"{len(content)} bytes")
    version, checksum = _HEAD.unpack_from(content)
    body = memoryview(content)[_HEAD.size :]
    (count,) = _COUNT.unpack_from(body)
    if version != VERSION:
        raise CorruptSnapshot(f"version {version}")
    if checksum != crc32c(body):
        raise CorruptSnapshot("a wrong checksum")
    end, newest_aborted = _COUNT.size + count * _ENTRY.size, NONE_ABORTED
    if len(body) == end + _NEWEST_ABORTED.size:
        (newest_aborted,) = _NEWEST_ABORTED.unpack_from(body, end)
    elif len(body) != end:
        raise CorruptSnapshot(f"{len(body)} bytes for {count} entries")
    entries = [SnapshotEntry(*fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size : end])]
    return entries, newest_aborted

"""The batch that ends a producer's transaction in a partition: one control record (KIP-98).

Key: int16 version, int16 type (0 abort, 1 commit). Value: int16 version, int32 coordinator epoch.
The batch is transactional and control, and has the producer's id and epoch and no sequence.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import (
    CONTROL_BIT,
    HEADER_BYTES,
    BatchHeader,
    Record,
    decode_batch,
    encode_batch,
    iterate_headers,
    read_header,
)

ABORT: Final = 0
COMMIT: Final = 1
MARKER_VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
# A marker's only record, as every broker writes it: size, attributes 0, time and offset deltas 0,
# size of the key, key, size of the value, value.
_RECORD: Final = struct.Struct(">5shhchi")
_BEFORE_KEY: Final = bytes((32, 0, 0, 0, 8))
_BEFORE_VALUE: Final = bytes((12,))
_PLAIN_BYTES: Final = HEADER_BYTES + _RECORD.size + 1  # the count of headers: 0


class TransactionMarker(NamedTuple):
    """The outcome of a producer's transaction, and the epoch of the coordinator that sent it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commits: bool


def encode_marker(marker: TransactionMarker, timestamp_ms: int) -> bytes:
    """Return the batch, with base offset 0 and without a leader epoch: the leader assigns them."""
    key = _KEY.pack(MARKER_VERSION, COMMIT if marker.commits else ABORT)
    value = _VALUE.pack(MARKER_VERSION, marker.coordinator_epoch)
    return encode_batch(
        [Record(0, timestamp_ms, key, value, ())],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_control=True,
        is_transactional=True,
    )


def decode_marker(batch: Buffer, position: int = 0) -> TransactionMarker | None:
    """Return the marker of a control batch; None: it has no record, or a record of another type.

    Compaction may leave a control batch without its record. Raises CorruptBatch or ValueError: the
    batch or its record cannot be read.
    """
    return marker_of(read_header(batch, position), decode_batch(batch, position))


def marker_of(header: BatchHeader, records: Sequence[Record]) -> TransactionMarker | None:
    """Return the marker of a decoded control batch; see `decode_marker`."""
    if not records:
        return None
    try:
        _, kind = _KEY.unpack_from(records[0].key or b"")
        if kind not in {ABORT, COMMIT}:
            return None
        _, coordinator_epoch = _VALUE.unpack_from(records[0].value or b"")
    except struct.error as error:
        raise ValueError(f"not a transaction marker: {error}") from error
    return TransactionMarker(
        header.producer_id, header.producer_epoch, coordinator_epoch, kind == COMMIT
    )


def _plain_marker(batch: Buffer, position: int, header: BatchHeader) -> TransactionMarker | None:
    """Return the marker of a batch as `encode_marker` writes it; None for any other batch."""
    if header.size_in_bytes != _PLAIN_BYTES or header.record_count != 1:
        return None
    before_key, _, kind, before_value, _, epoch = _RECORD.unpack_from(
        batch, position + HEADER_BYTES
    )
    is_plain = before_key == _BEFORE_KEY and before_value == _BEFORE_VALUE
    if not is_plain or kind not in {ABORT, COMMIT}:
        return None
    return TransactionMarker(header.producer_id, header.producer_epoch, epoch, kind == COMMIT)


def marked_headers(
    batches: Buffer, headers: Iterable[tuple[int, BatchHeader]] | None = None
) -> list[tuple[int, BatchHeader, TransactionMarker | None]]:
    """Return (position, header, marker) of each whole batch. Raises CorruptBatch.

    `headers`: only of these batches. The caller checks the CRCs: a marker's CRC is not always
    checked here.
    """
    marked: list[tuple[int, BatchHeader, TransactionMarker | None]] = []
    for position, header in iterate_headers(batches) if headers is None else headers:
        marker = None
        if header.attributes & CONTROL_BIT:
            try:
                marker = _plain_marker(batches, position, header)
                marker = marker or decode_marker(batches, position)
            except ValueError as error:
                raise CorruptBatch(f"offset {header.base_offset}: {error}") from error
        marked.append((position, header, marker))
    return marked

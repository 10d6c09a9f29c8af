"""Checks of an append: batches stamped here as leader, or stamped by another leader.

Only headers are read. Sources: Kafka's `UnifiedLog.append`; KAFKA-18723.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from quorumlog.invariants import require
from quorumlog.native import lane
from quorumlog.storage.core.segment_index import NO_TIMESTAMP, BatchSpan
from quorumlog.storage.core.settings import INT32_MAX
from quorumlog.storage.errors import OlderEpoch, RecordsTooLarge, UnexpectedOffset
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.filtered_batches import empty_batch
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, Offset
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    iterate_headers,
    read_header,
    validate_batch,
)

_STAMP: Final = Struct(">qii")  # the first fields of a batch: offset, length, leader epoch
_BASE_OFFSET: Final = Struct(">q")  # the first field of a batch


LeaderBatch = tuple[Buffer, BatchHeader]
"""One batch, whose checksum its caller has checked, and its header."""


class Append(NamedTuple):
    """Whole batches to write, or written: their bytes, their spans, and their totals.

    Their offsets are [first_offset, last_offset].
    """

    chunks: Sequence[Buffer]
    spans: Sequence[BatchSpan]
    first_offset: int
    last_offset: int
    size: int
    max_timestamp: int
    epoch_starts: Sequence[tuple[int, int]]  # new ones: (leader epoch, first offset)


_new_append: Final = tuple.__new__  # half the cost of a call of the class


def stamped_by_leader(
    batches: Sequence[LeaderBatch], next_offset: int, leader_epoch: int, latest_epoch: int
) -> Append:
    """Stamp batches with the next offsets and this leader epoch, without a copy of them.

    Raises CorruptBatch unless each buffer is exactly one whole batch.
    """
    if leader_epoch < latest_epoch:
        require(False, "a leader's epoch is not older than its log")
    first_offset, total, latest = next_offset, 0, NO_TIMESTAMP
    chunks: list[Buffer] = []
    spans: list[BatchSpan] = []
    for batch, header in batches:
        batch_length, max_timestamp = header.batch_length, header.max_timestamp
        size = batch_length + LOG_OVERHEAD_BYTES
        if size != len(batch):
            raise CorruptBatch(f"{len(batch)} bytes are not one batch of {size} bytes")
        chunks += (
            _STAMP.pack(next_offset, batch_length, leader_epoch),
            memoryview(batch)[_STAMP.size :],
        )
        last_offset = _last_offset(next_offset, header.last_offset_delta)
        spans.append((last_offset, size, max_timestamp))
        next_offset = last_offset + 1
        total += size
        if max_timestamp > latest:  # noqa: PLR1730 - `max` costs a call each
            latest = max_timestamp
    starts = ((leader_epoch, first_offset),) if leader_epoch > latest_epoch else ()
    return _new_append(
        Append, (chunks, spans, first_offset, next_offset - 1, total, latest, starts)
    )


def stamped_by_another(
    records: memoryview,
    headers: Iterable[tuple[int, BatchHeader]] | None = None,
    *,
    next_offset: int,
    leader_epoch: int | None,
    latest_epoch: int,
    may_have_gaps: bool,
) -> Append | None:
    """Check batches as a leader has sent them; None if no batch is to be appended.

    `headers`: (position, header) of each whole batch, if the caller has read them. A partial batch
    at the end is left out. So are a batch of a newer epoch than leader_epoch and all batches after
    it: they come from a leader that this replica does not follow yet. Raises CorruptBatch,
    UnexpectedOffset (OlderEpoch for the first batch), RecordsTooLarge.
    """
    begun = _from(next_offset, records)
    if headers is None or begun is not records:
        headers = iterate_headers(begun)
    records = begun
    base_offset, end = UNKNOWN_OFFSET, 0
    spans: list[BatchSpan] = []
    epoch_starts: list[tuple[int, int]] = []
    for position, header in headers:
        offset, epoch = header.base_offset, header.leader_epoch
        if leader_epoch is not None and epoch > leader_epoch:
            break
        validate_batch(records, position, header)
        if offset < next_offset or (offset > next_offset and not may_have_gaps):
            raise UnexpectedOffset(f"offset {offset} where {next_offset} is due")
        if epoch < latest_epoch:  # the log must be truncated first (KAFKA-10706)
            message = f"offset {offset} of epoch {epoch} after epoch {latest_epoch}"
            raise UnexpectedOffset(message) if spans else OlderEpoch(message, epoch)
        if epoch > latest_epoch:
            latest_epoch = epoch
            epoch_starts.append((epoch, offset))
        if not spans:
            base_offset = Offset(offset)
        size, delta = header.batch_length + LOG_OVERHEAD_BYTES, header.last_offset_delta
        spans.append((_last_offset(offset, delta), size, header.max_timestamp))
        next_offset = offset + delta + 1
        end = position + size
    if not spans:
        return None
    last_offset = next_offset - 1
    if end > INT32_MAX or last_offset - base_offset > INT32_MAX:
        offsets = last_offset - base_offset
        raise RecordsTooLarge(f"one append of {end} bytes and {offsets} offsets")
    latest = max([max_timestamp for _, _, max_timestamp in spans])
    return Append([records[:end]], spans, base_offset, last_offset, end, latest, epoch_starts)


def usual_copies(
    records: Buffer, *, next_offset: int, leader_epoch: int, latest_epoch: int
) -> tuple[Append, list[tuple[int, BatchHeader]]] | None:
    """Check batches as `stamped_by_another` does, in one pass, if all are usual.

    Usual batches are whole, continue the log without a gap, and have its latest epoch. Return
    also (position, header) of each batch with a producer. None decides nothing.
    """
    if lane.functions is None or latest_epoch > leader_epoch:
        return None
    found = lane.functions.check_copies(records, next_offset, latest_epoch, BatchHeader)
    if found is None:
        return None
    spans, of_producers = found
    latest = max([max_timestamp for _, _, max_timestamp in spans])
    append = Append([records], spans, next_offset, spans[-1][0], len(records), latest, ())
    return append, of_producers


def earlier_beginning(records: Buffer, *, next_offset: int, leader_epoch: int) -> Offset | None:
    """Return the base offset of the first batch if `next_offset` is inside, but not its first.

    None: the batch does not span `next_offset`, is partial, or has a newer epoch than
    `leader_epoch`, the epoch of the followed leader. Raises CorruptBatch.
    """
    view = memoryview(records)
    if len(view) < HEADER_BYTES:
        return None
    header = read_header(view)
    is_inside = header.base_offset < next_offset <= header.last_offset
    if not is_inside or header.leader_epoch > leader_epoch or header.size_in_bytes > len(view):
        return None
    validate_batch(view, 0, header)
    return Offset(header.base_offset)


def _from(next_offset: int, records: memoryview) -> memoryview:
    """Replace a leading empty batch that spans `next_offset` by one that begins there.

    Compaction joins the batches that it removes, so a cleaned log may have one batch where the log
    of a lagging follower ends between two. Batches with records keep their base offset.
    """
    if len(records) < HEADER_BYTES or _BASE_OFFSET.unpack_from(records)[0] >= next_offset:
        return records  # nearly always
    header = read_header(records)
    is_inside = header.base_offset < next_offset <= header.last_offset
    if not is_inside or header.record_count or header.size_in_bytes > len(records):
        return records
    validate_batch(records, 0, header)
    begun_later = empty_batch(next_offset, header.last_offset, header.leader_epoch)
    return memoryview(begun_later + records[header.size_in_bytes :])


def _last_offset(base_offset: int, last_offset_delta: int) -> int:
    if last_offset_delta < 0:
        raise CorruptBatch("a batch that spans no offset")
    return base_offset + last_offset_delta

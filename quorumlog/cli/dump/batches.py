"""The batches of a `.log` file, or of a snapshot of the metadata, and their records.

The file is read once, from its start to where it ended when it was opened; one batch is in memory
at a time. A batch whose checksum differs is shown without records, and reading goes on behind it
if a batch begins there.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

from quorumlog.cli.dump.contents import Asked, Item, Problem
from quorumlog.cli.dump.record_kinds import Decode, Undecodable, decode_control
from quorumlog.cli.formats import text_or_base64
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    Record,
    decode_batch,
    read_header,
    validate_batch,
)

BATCH_BYTES_MAX: Final = 256 << 20  # no broker accepts a larger batch
_DELETE_HORIZON_BIT: Final = 0x40  # KIP-534: the base timestamp is when tombstones may go


def read_batches(
    file: BinaryIO, size: int, asked: Asked, decode: Decode | None = None, *, base_offset: int = 0
) -> Iterator[Item | Problem]:
    """Yield each batch of the first `size` bytes, and the problems.

    `base_offset`: the minimum for the first batch; `decode` reads data records.
    """
    position, expected, epoch, left = 0, base_offset, -1, asked.records_max
    while position < size and left != 0:
        head = file.read(min(HEADER_BYTES, size - position))
        try:
            header = read_header(head)
            _require_room(header, size - position)
        except CorruptBatch as error:
            yield Problem(position, f"{_unread(head, error)}; {size - position} bytes are not read")
            return
        if fault := _out_of_order(header, expected, epoch):
            yield Problem(position, fault)
        body_bytes = header.size_in_bytes - HEADER_BYTES
        is_wanted = asked.offset is None or header.last_offset >= asked.offset
        if not is_wanted or header.size_in_bytes > BATCH_BYTES_MAX:
            file.seek(body_bytes, 1)
            if is_wanted:
                yield Problem(position, f"a batch of {header.size_in_bytes} bytes is not read")
        else:
            batch = _Batch(position, header, head + file.read(body_bytes))
            yield from batch.told(asked._replace(records_max=left), decode)
            if left is not None:
                left -= batch.records_told
        expected, epoch = max(expected, header.next_offset), max(epoch, header.leader_epoch)
        position += header.size_in_bytes


def read_snapshot(
    file: BinaryIO, size: int, asked: Asked, decode: Decode
) -> Iterator[Item | Problem]:
    """Yield the batches of a snapshot of the metadata (KIP-630).

    A finished snapshot begins with a header batch and ends with a footer batch.
    """
    first: Item | None = None
    last: Item | None = None
    for item in read_batches(file, size, asked, decode):
        yield item
        if not isinstance(item, Problem):
            first, last = first or item, item
    if asked.offset is not None or asked.records_max is not None:
        return
    if first is None or not first["is_control"]:
        yield Problem(0, "the snapshot has no header")
    if last is None or last is first or not last["is_control"]:
        yield Problem(size, "the snapshot has no footer: it was not finished")


def _require_room(header: BatchHeader, left: int) -> None:
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic}: only format {MAGIC} is read")
    if header.size_in_bytes > left:
        raise CorruptBatch(
            f"a batch of {header.size_in_bytes} bytes, but only {left} bytes are left"
        )


def _unread(head: bytes, error: CorruptBatch) -> str:
    return "zeros where a batch should begin" if not any(head) else str(error)


def _out_of_order(header: BatchHeader, expected: int, epoch: int) -> str | None:
    if header.base_offset < expected:
        return f"base offset {header.base_offset} is below {expected}, the end of the batch before"
    if header.leader_epoch < epoch:
        return f"leader epoch {header.leader_epoch} after {epoch}"
    return None


class _Batch:
    """One whole batch: all of its bytes are present; they may still be corrupt."""

    def __init__(self, position: int, header: BatchHeader, data: bytes) -> None:
        self._position, self._header, self._data = position, header, data
        self.records_told = 0

    def told(self, asked: Asked, decode: Decode | None) -> Iterator[Item | Problem]:
        """Yield the problems of the batch, then the batch, with its records if requested."""
        item = describe_header(self._header) | {"position": self._position}
        fault: str | None = None
        records: list[Record] = []
        try:
            if asked.with_records:
                records = decode_batch(self._data)
            else:
                validate_batch(self._data, 0, self._header)
        except CorruptBatch as error:
            fault = str(error)
        item["is_valid"] = fault is None
        if fault is not None:
            yield Problem(self._position, fault)
        if asked.with_records:
            shown = [one for one in records if asked.offset is None or one.offset >= asked.offset]
            shown = shown[: asked.records_max]
            self.records_told = len(shown)
            item["records"] = []
            for record in shown:
                try:
                    item["records"].append(self._record(record, asked, decode))
                except Undecodable as error:
                    item["records"].append(_raw(record, with_value=asked.with_values))
                    yield Problem(self._position, f"the record at {record.offset}: {error}")
        yield item

    def _record(self, record: Record, asked: Asked, decode: Decode | None) -> Item:
        if self._header.is_control:
            decode = decode_control
        if decode is None:
            return _raw(record, with_value=asked.with_values)
        at = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
        return at | {"decoded": decode(record)}


def _raw(record: Record, *, with_value: bool) -> Item:
    item: Item = {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": text_or_base64(record.key),
        "value_bytes": None if record.value is None else len(record.value),
    }
    if with_value:
        item["value"] = text_or_base64(record.value)
    return item | {"headers": [[name, text_or_base64(value)] for name, value in record.headers]}


def describe_header(header: BatchHeader) -> Item:
    """Return the header's fields under Kafka's names. Offsets: [base_offset, last_offset]."""
    try:
        compression = header.compression.name.lower()
    except CorruptBatch as error:
        compression = str(error)
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "has_delete_horizon": bool(header.attributes & _DELETE_HORIZON_BIT),
        "timestamp_type": "LogAppendTime" if header.has_log_append_time else "CreateTime",
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "compression": compression,
        "size": header.size_in_bytes,
        "crc": header.crc,
    }

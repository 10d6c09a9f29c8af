"""Records in outline, as the oracles compare them."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import (
    BatchHeader,
    Record,
    decode_batch,
    iterate_headers,
    validate_batch,
)
from quorumlog.wire.codec.transaction_markers import marker_of

CONTROL: Final = b"LeaderChange"
VOTERS: Final = b"Voters "  # and the value of the record
COMMITS: Final = b"Commit "  # and the value of the marker
ABORTS: Final = b"Abort "
_LEADER_CHANGE_KEY: Final = b"\0\0\0\2"
_VOTERS_KEY: Final = b"\0\0\0\6"


class Entry(NamedTuple):
    """One record. `content` is its value, which no other record of the run has.

    `key`: empty in a control batch.
    """

    epoch: int
    content: bytes
    position: int  # in its batch
    producer_id: int = -1  # of an idempotent producer
    key: bytes = b""
    is_transactional: bool = False


def is_in_transaction(entries: Sequence[Entry], producer_id: int) -> bool:
    """Whether no marker has ended the producer's last transaction in a log of these records."""
    of_producer = (
        entry
        for entry in reversed(entries)
        if entry.producer_id == producer_id and entry.is_transactional
    )
    last = next(of_producer, None)
    return last is not None and not last.content.startswith((COMMITS, ABORTS))


def entries_of(records: bytes) -> list[Entry]:
    """Return the records of whole batches."""
    entries: list[Entry] = []
    for position, header in iterate_headers(records):
        entries += [
            Entry(
                header.leader_epoch,
                _content(header, record),
                index,
                header.producer_id,
                b"" if header.is_control else record.key or b"",
                header.is_transactional,
            )
            for index, record in enumerate(decode_batch(records, position))
        ]
    return entries


def batches_on_disk(disk: SimDisk, directory: str) -> Iterator[tuple[bytes, BatchHeader]]:
    """Yield the whole batches with which a log begins, in its first segment."""
    content = dict(disk.files()).get(f"{directory}/{0:020d}.log", b"")
    end_offset = 0
    with suppress(CorruptBatch):
        for position, header in iterate_headers(content):
            validate_batch(content, position, header)
            if header.base_offset != end_offset:
                return
            end_offset = header.next_offset
            yield content[position : position + header.size_in_bytes], header


def entries_on_disk(disk: SimDisk, directory: str) -> list[Entry]:
    """Return the records of those batches."""
    batches = batches_on_disk(disk, directory)
    return [entry for batch, _ in batches for entry in entries_of(batch)]


def _content(header: BatchHeader, record: Record) -> bytes:
    """Return the value, also of a marker; only its epoch identifies a LeaderChange."""
    marker = marker_of(header, [record]) if header.is_control else None
    if marker is not None:
        return (COMMITS if marker.commits else ABORTS) + (record.value or b"")
    return content_of(record.key, record.value or b"")


def content_of(key: bytes | None, value: bytes) -> bytes:
    """Return the content of the entry of a record."""
    if key == _LEADER_CHANGE_KEY:
        return CONTROL
    return VOTERS + value if key == _VOTERS_KEY else value

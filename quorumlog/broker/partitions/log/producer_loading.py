"""What a log says of its idempotent producers: a snapshot, and the batches after it."""

from collections.abc import Iterable, Iterator
from typing import Final

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.storage.core.reading import NoteRead
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.records import BatchHeader

NOTED_BYTES: Final = 1 << 20  # told at a time


def load_producers(
    log: Log,
    kind: type[ProducerStates] = ProducerStates,
    note_read: NoteRead = lambda _: None,
) -> ProducerStates:
    """Learn the producers; without a snapshot, from every batch, also below the log's start.

    The class `kind` is a rule of the replica. `note_read` is told the bytes that were read, again
    and again. Waits for the disk. Raises StorageError.
    """
    producers = kind()
    snapshot = log.producers.newest() or ProducerSnapshot(log.segment_base_offsets[0], ())
    is_whole = snapshot.offset == log.log_end_offset
    headers: Iterable[BatchHeader] | None = log.producers.batches_since(snapshot.offset)
    if headers is None:
        headers = () if is_whole else _noted(log.headers(snapshot.offset), note_read)
    producers.rebuild(headers, snapshot.entries)
    return producers


def _noted(headers: Iterable[BatchHeader], note_read: NoteRead) -> Iterator[BatchHeader]:
    size = 0
    for header in headers:
        size += header.size_in_bytes
        if size >= NOTED_BYTES:
            note_read(size)
            size = 0
        yield header
    note_read(size)

"""What a log says of its idempotent producers: a snapshot, and the batches after it."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.storage.core.reading import NoteRead
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.records import BatchHeader

_logger: Final = logging.getLogger(__name__)
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


def work_to_keep(log: Log, producers: ProducerStates, offset: Offset) -> Callable[[], None]:
    """Return work for the disk: to keep what is known now, of the log up to `offset`."""
    return partial(log.producers.keep, ProducerSnapshot(offset, producers.snapshot()))


def work_to_spare_reads(log: Log, producers: ProducerStates, offset: Offset) -> Callable[[], None]:
    """Do as `work_to_keep` does; if the disk refuses it, the next start reads more."""
    keep = work_to_keep(log, producers, offset)

    def work() -> None:
        try:
            keep()
        except StorageError as error:
            _logger.warning("%s: %s", log.directory, error)

    return work


def _noted(headers: Iterable[BatchHeader], note_read: NoteRead) -> Iterator[BatchHeader]:
    size = 0
    for header in headers:
        size += header.size_in_bytes
        if size >= NOTED_BYTES:
            note_read(size)
            size = 0
        yield header
    note_read(size)

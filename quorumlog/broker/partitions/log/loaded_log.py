"""An open log with its high watermark and producers, loaded in a thread.

Threads open the logs of one directory in turn. The files are mostly in the page cache, and threads
that hardly wait for the disk only take the interpreter from each other.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.metadata_quorum.image import TopicImage
from quorumlog.storage.core.recovery import MAX_EPOCH
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.batch_reader import NoteRead
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker

_logger: Final = logging.getLogger(__name__)
NOTED_BYTES: Final = 1 << 20  # reported at a time
Batch: TypeAlias = tuple[BatchHeader, TransactionMarker | None]  # the marker of a control batch


def load_producers(
    log: Log,
    kind: type[ProducerStates] = ProducerStates,
    note_read: NoteRead = lambda _: None,
    clock_ahead_ms: int = 0,
) -> ProducerStates:
    """Load the producers; without a snapshot, from every batch, also below the log start.

    The class `kind` is a rule of the replica. `note_read` repeatedly receives the number of bytes
    read. `clock_ahead_ms`: of the advanced clock of this broker to the clocks of clients. Waits for
    the disk. Raises StorageError.
    """
    producers = kind()
    producers.clock_ahead_ms = clock_ahead_ms
    snapshot = log.producers.newest() or ProducerSnapshot(log.segment_base_offsets[0], ())
    headers = log.producers.batches_since(snapshot.offset)
    if headers or snapshot.entries:
        producers.rebuild(headers or (), snapshot.entries)
    producers.transactions.known_from = int(snapshot.offset)
    if headers is None and snapshot.offset < log.log_end_offset:
        _replay(log, producers, snapshot.offset, note_read)
    log.producers.keep_transactions()
    return producers


def _replay(log: Log, producers: ProducerStates, offset: Offset | int, note_read: NoteRead) -> None:
    """Apply every batch; add the aborted transactions that the transaction files lack."""
    learnt_from = log.producers.transactions.learnt_from
    for header, marker in _noted(log.producers.batches(offset), note_read):
        seen_ms = header.max_timestamp + producers.clock_ahead_ms
        aborted = producers.record(header, header.base_offset, seen_ms, marker)
        if aborted is not None and aborted.last_offset >= learnt_from:
            log.aborted.add(aborted)


def work_to_keep(log: Log, producers: ProducerStates, offset: Offset) -> Callable[[], None]:
    """Return disk work that keeps a snapshot of the current producers at `offset`."""
    return partial(log.producers.keep, ProducerSnapshot(offset, producers.snapshot()))


def work_to_spare_reads(log: Log, producers: ProducerStates, offset: Offset) -> Callable[[], None]:
    """Return the same work, but a StorageError is only logged: the next start reads more."""
    keep = work_to_keep(log, producers, offset)

    def work() -> None:
        try:
            keep()
        except StorageError as error:
            _logger.warning("%s: %s", log.directory, error)

    return work


def _noted(batches: Iterable[Batch], note_read: NoteRead) -> Iterator[Batch]:
    size = 0
    for batch in batches:
        size += batch[0].size_in_bytes
        if size >= NOTED_BYTES:
            note_read(size)
            size = 0
        yield batch
    note_read(size)


TURN_S: Final = 0.02  # the longest wait for the turn: after it, the other thread has a slow disk


class LoadedLog(NamedTuple):
    """An open log, its checkpointed high watermark, and its producers."""

    log: Log
    high_watermark: Offset
    producers: ProducerStates


def load_log(
    home: LogDirectory,
    at: TopicPartition,
    topic: TopicImage,
    standing: Standing,
    producers: type[ProducerStates],
    *,
    newest_epoch: int = MAX_EPOCH,
    note_read: NoteRead,
    clock_ahead_ms: int = 0,
) -> LoadedLog:
    """Open a log, as `LogDirectory.open` does, and load its producers. Raises StorageError."""
    is_turn = not home.options.must_last and home.opening.acquire(timeout=TURN_S)
    try:
        log, high_watermark = home.open(
            at, topic.topic_id, topic.configs, standing=standing, newest_epoch=newest_epoch
        )
        try:
            known = load_producers(log, producers, note_read, clock_ahead_ms)
            return LoadedLog(log, high_watermark, known)
        except StorageError:
            log.close(clean=False)
            raise
    finally:
        if is_turn:
            home.opening.release()

"""An open log with its high watermark and producers, loaded in a thread.

Threads open the logs of one directory in turn. The files are mostly in the page cache, and threads
that hardly wait for the disk only take the interpreter from each other.
"""

from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.producer_loader import load_producers
from quorumlog.metadata_quorum.image import TopicImage
from quorumlog.storage.core.recovery import MAX_EPOCH
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.batch_reader import NoteRead
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

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
) -> LoadedLog:
    """Open a log, as `LogDirectory.open` does, and load its producers. Raises StorageError."""
    is_turn = not home.must_last and home.opening.acquire(timeout=TURN_S)
    try:
        log, high_watermark = home.open(
            at, topic.topic_id, topic.configs, standing=standing, newest_epoch=newest_epoch
        )
        try:
            return LoadedLog(log, high_watermark, load_producers(log, producers, note_read))
        except StorageError:
            log.close(clean=False)
            raise
    finally:
        if is_turn:
            home.opening.release()

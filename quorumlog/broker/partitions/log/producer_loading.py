"""What a log says of its idempotent producers: a snapshot, and the batches after it."""

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot


def load_producers(log: Log) -> ProducerStates:
    """Learn the producers; without a snapshot, from every batch, also below the log's start.

    Waits for the disk. Raises StorageError.
    """
    producers = ProducerStates()
    snapshot = log.producers.newest() or ProducerSnapshot(log.segment_base_offsets[0], ())
    is_whole = snapshot.offset == log.log_end_offset
    producers.rebuild(() if is_whole else log.headers(snapshot.offset), snapshot.entries)
    return producers

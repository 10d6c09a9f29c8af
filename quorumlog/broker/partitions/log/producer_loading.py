"""What a log's batches say of its idempotent producers."""

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.storage.io.log import Log


def load_producers(log: Log) -> ProducerStates:
    """Learn the producers from the log; the last batch of one may be below its start.

    Waits for the disk. Raises StorageError.
    """
    producers = ProducerStates()
    producers.rebuild(log.headers(log.segment_base_offsets[0]))
    return producers

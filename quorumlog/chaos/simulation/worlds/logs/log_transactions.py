"""The transactions of a simulated process: its appends, and the state of its producers."""

from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log import loaded_log
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.logs.oracle import NO_PRODUCER, Said
from quorumlog.chaos.simulation.worlds.logs.transactions import TransactionBatch, TransactionModel
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.records import decode_batch, read_header
from quorumlog.wire.codec.transaction_markers import TransactionMarker, decode_marker

PRODUCERS: Final = (10, 11)
SHARE: Final = 0.4  # of the compacted logs
MARKER_SHARE: Final = 0.4


class LogTransactions:
    """Of one log, with the rules of a replica; nothing, in the share of the logs that has none."""

    def __init__(self, rng: Rng, model: TransactionModel, *, may_be_there: bool) -> None:
        self.are_there: Final = may_be_there and rng.random() < SHARE
        self.rng: Final = rng
        self._model: Final = model
        self._producers = ProducerStates()

    def load(self, log: Log) -> None:
        """Learn the producers from a log that was opened or cut. Raises StorageError."""
        if self.are_there:
            self._producers = loaded_log.load_producers(log)

    def keep(self, log: Log, last_of: Mapping[int, int]) -> None:
        """Write a snapshot of the producers. Raises StorageError.

        Without transactions, of the last offset of each, as in the model.
        """
        if self.are_there:
            loaded_log.work_to_keep(log, self._producers, log.log_end_offset)()
            return
        entries = [SnapshotEntry(one, 0, last, last, 0, 0) for one, last in last_of.items()]
        log.producers.keep(ProducerSnapshot(int(log.log_end_offset), entries))

    def append(self, log: Log, append_records: Callable[[int], None]) -> TransactionMarker | None:
        """Begin a transaction or go on with it; or return the marker that is to end it."""
        producer_id, base_offset = self.rng.choice(PRODUCERS), int(log.log_end_offset)
        if self._model.is_open(producer_id) and self.rng.random() < MARKER_SHARE:
            return TransactionMarker(producer_id, 0, 0, self.rng.random() < 0.5)
        append_records(producer_id)
        batch = TransactionBatch(producer_id, base_offset, int(log.log_end_offset))
        self._model.note(batch)
        return None

    def note(self, log: Log, batch: bytes, wall_ms: int) -> None:
        """Note the batch at the end of the log."""
        header, end = read_header(batch), int(log.log_end_offset)
        marker = decode_marker(batch) if header.is_control else None
        aborted = self._producers.record(header, end - header.record_count, wall_ms, marker)
        if aborted is not None:
            log.aborted.add(aborted)
        if marker is not None:
            self._model.note(TransactionBatch(marker.producer_id, end - 1, end, marker.commits))

    def decided_end(self, log: Log, high_watermark: int) -> int:
        """Return the last stable offset that a replica passes to its cleaner."""
        transactions = self._producers.transactions
        transactions.committed_to(high_watermark)
        return transactions.decided_end(log.log_start_offset, high_watermark)


def said_marker(batch: bytes, epoch: int) -> Said:
    """Return the record of a marker's batch."""
    (record,) = decode_batch(batch)
    return Said(epoch, record.key or b"", record.value, record.timestamp_ms, NO_PRODUCER)

"""The producer state that a log stores for its owner until the next start."""

import logging
import threading
from collections.abc import Iterator
from typing import Final

from quorumlog.storage.core.aborted_transactions import AbortedTransactions
from quorumlog.storage.errors import storage_errors
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.log_loader import LoadedLog
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList
from quorumlog.storage.io.transaction_index import ALL_KNOWN
from quorumlog.wire.codec.records import BatchHeader, CorruptBatch
from quorumlog.wire.codec.transaction_markers import TransactionMarker, decode_marker

_logger: Final = logging.getLogger(__name__)


class KeptProducers:
    """The snapshots of one log. Other threads may use them beside appends: `lock` excludes cuts."""

    def __init__(
        self, loaded: LoadedLog, segments: SegmentList, *, lock: threading.Lock, health: LogHealth
    ) -> None:
        self._snapshots: Final = loaded.snapshots
        self._recent = loaded.recent
        self._segments: Final = segments
        self.transactions: Final = segments.transactions
        self._lock: Final = lock
        self._health: Final = health

    def keep(self, snapshot: ProducerSnapshot) -> None:
        """Write the producer state of the log's end at `snapshot.offset`, durably.

        Does nothing if this snapshot exists, if the log has no records below it, or if the log is
        closed. Raises StorageError.
        """
        with self._lock:
            is_known = snapshot.offset in self._snapshots.offsets
            is_empty = snapshot.offset <= self._segments.first_base_offset
            if is_known or is_empty or self._health.failure is not None:
                return
            newest_aborted = self.transactions.aborted.newest_below(snapshot.offset)
            with storage_errors("cannot keep the producers"):
                self._snapshots.write(snapshot._replace(newest_aborted=newest_aborted))

    def batches_since(self, offset: int) -> list[BatchHeader] | None:
        """Return the last batches of each producer from `offset` on, found by recovery.

        None: read the log. Only the first call returns them, and only if the log was not truncated
        since it was opened.
        """
        recent, self._recent = self._recent, None
        if recent is None or self._segments.cuts:
            return None
        return recent.since(offset)

    def kept_at(self, offset: int) -> ProducerSnapshot | None:
        """Read the snapshot of this end offset; None without one. Raises StorageError."""
        with self._lock, self._health.reading():
            return self._snapshots.at(offset)

    def newest(self) -> ProducerSnapshot | None:
        """Read the newest snapshot that is above neither the log's end nor `learnt_from`.

        Raises StorageError.
        """
        if self._snapshots.is_empty:
            return None
        with self._lock, self._health.reading():
            snapshot = self._snapshots.newest(self.transactions.learnt_from)
            if snapshot is None or self.transactions.check(snapshot.newest_aborted):
                return snapshot
            return self._snapshots.newest(self.transactions.learnt_from)

    def batches(self, offset: int) -> Iterator[tuple[BatchHeader, TransactionMarker | None]]:
        """Iterate over the batches from `offset` on, with the markers of control batches.

        An unreadable control batch yields no marker. The log may be appended to and read meanwhile,
        but not truncated. Raises StorageError.
        """
        with self._health.reading():
            for segment in self._segments.all_from(offset):
                for position, header in segment.headers(offset):
                    yield header, self._marker(segment, position, header)

    def _marker(
        self, segment: Segment, position: int, header: BatchHeader
    ) -> TransactionMarker | None:
        if not header.is_control:
            return None
        try:
            return decode_marker(segment.read_bytes(position, position + header.size_in_bytes))
        except (CorruptBatch, ValueError) as error:
            _logger.warning("%s: offset %d: %s", segment.path, header.base_offset, error)
            return None

    def copy_transactions(self, source: AbortedTransactions) -> None:
        """Copy the aborted transactions of another log of the same records. Raises StorageError."""
        end_offset = self._segments.active.index.next_offset
        first_offset = self._segments.first_base_offset
        known = source.within(first_offset, end_offset)
        self.transactions.aborted.replace(0, end_offset, known)
        self.transactions.learnt_from = 0  # the files lack them as yet
        self.keep_transactions()

    def keep_transactions(self) -> None:
        """Write aborted transactions that were read from the log. Raises StorageError."""
        learnt_from = self.transactions.learnt_from
        if learnt_from == ALL_KNOWN:
            return
        with self._lock, self._health.changing("keep aborted transactions"):
            self._segments.keep_transactions(learnt_from)
        self.transactions.learnt_from = ALL_KNOWN

"""Brings records for a read into memory, in the disk queue; then the read is repeated.

The event loop alone reads for responses, so each request is checked and read at one moment. A
thread only fills the page cache, or loads an index that the loop takes over.
"""

from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.storage.errors import NotInMemory, StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import TopicPartition

# Memory pressure may evict the records before the read is repeated: after this, the read waits.
BRING_INS_MAX: Final = 4  # an index, the batch of an offset, the end of the range, one spare


def bring_in(
    queue: DiskQueue,
    at: TopicPartition,
    log: Log,
    missing: NotInMemory,
    *,
    is_wanted: Callable[[], bool],
    done: Callable[[StorageError | None], None],
) -> None:
    """Bring the missing bytes in, unless unwanted by then; pass `done` the error, or None.

    It runs in the partition's lane: the log is neither truncated nor closed meanwhile. If the
    cleaner has replaced segments before, files may be gone: that is no failure, and the repeated
    read finds the new segments.
    """
    swaps = log.compaction.swaps

    def work() -> Callable[[], None] | None:
        return missing.bring_in() if is_wanted() else None

    def worked(outcome: Callable[[], None] | StorageError | None) -> None:
        if isinstance(outcome, StorageError):
            done(outcome if log.compaction.swaps == swaps else None)
            return
        if outcome is not None:
            outcome()
        done(None)

    queue.submit(at, work, worked)

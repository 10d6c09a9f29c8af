"""Brings what a read misses from the disk into memory, in the disk queue; then it is read again.

The event loop alone reads for answers, so that each is judged and read at one moment. A thread
only fills the page cache, or loads an index that the loop takes over.
"""

from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.storage.errors import NotInMemory, StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import TopicPartition

# Memory may be too short to keep what was brought in until it is read; after this the read waits.
BRING_INS_MAX: Final = 4  # an index, the batch of an offset, the end of what was asked for, spare


def bring_in(
    queue: DiskQueue,
    at: TopicPartition,
    log: Log,
    missing: NotInMemory,
    *,
    is_wanted: Callable[[], bool],
    done: Callable[[StorageError | None], None],
) -> None:
    """Bring it in unless it is not wanted any more by then; tell `done` why it failed, or None.

    In the lane of the partition: its log is neither cut nor closed meanwhile. If the cleaner has
    replaced segments before that, files may be gone: this is no failure, the read finds the new.
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

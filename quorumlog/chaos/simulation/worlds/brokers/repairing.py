"""What a person does whose broker has stopped and says what to do."""

from contextlib import suppress

from quorumlog.broker.partitions.log.log_directory import OrphanedRecords
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.storage.io.disk import Disk


def maybe_repair(disk: Disk, failure: BaseException) -> None:
    """Say whose records those are that a loss of power has orphaned: no topic is made again here.

    If the disk refuses that, the next start fails in the same way, and the person is back.
    """
    if isinstance(failure, OrphanedRecords):
        with suppress(OSError):
            write_partition_metadata(disk, failure.path, failure.topic_id)

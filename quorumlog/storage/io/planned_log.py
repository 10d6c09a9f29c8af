"""A log of which nothing is on the disk before its first record.

Most of many partitions are empty for long: they cost no file, no handle and no reading at a start.

# DEVIATION: Kafka makes the directory of a replica when it makes the replica.
# docs/decisions/0108-a-replica-without-records-has-no-files.md
"""

from collections.abc import Callable
from typing import TypeVar

from quorumlog.storage.core.leader_epochs import LeaderEpochs
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache
from quorumlog.storage.io.loading import LoadedLog
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshots
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList

L = TypeVar("L", bound=Log)


def plan_log(
    new_log: type[L],
    disk: Disk,
    directory: str,
    settings: LogSettings,
    make_directory: Callable[[], None],
) -> L:
    """Return an empty log, without asking the disk.

    `make_directory` makes the directory, and what must be in it before a record. It may raise
    OSError; then nothing is appended, and it is called again for the next append.
    """
    segment = Segment(disk, directory, 0, settings, make_directory=make_directory)
    epochs = LeaderEpochCache(disk, directory, LeaderEpochs(), is_first=True)
    loaded = LoadedLog([segment], epochs, ProducerSnapshots(disk, directory, ()))
    segments = SegmentList(disk, directory, loaded.segments)
    return new_log(disk, directory, settings, segments=segments, loaded=loaded)

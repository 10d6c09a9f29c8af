"""A log without files before its first record.

Among many partitions, most stay empty for long: they cost no file, no handle and no read at start.

# DEVIATION: Kafka creates the directory of a replica when it creates the replica.
# docs/decisions/0022-file-handles.md
"""

from collections.abc import Callable
from typing import TypeVar

from quorumlog.storage.core.leader_epochs import LeaderEpochs
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.log_loader import LoadedLog
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
    """Return an empty log, without access to the disk.

    `make_directory` makes the directory and the files that must precede a record. It may raise
    OSError; then the append fails, and the next append calls it again.
    """
    segment = Segment(disk, directory, 0, settings, make_directory=make_directory)
    epochs = LeaderEpochCache(disk, directory, LeaderEpochs(), is_first=True)
    loaded = LoadedLog([segment], epochs, ProducerSnapshots(disk, directory, ()))
    segments = SegmentList(disk, directory, loaded.segments)
    return new_log(disk, directory, settings, segments=segments, loaded=loaded)

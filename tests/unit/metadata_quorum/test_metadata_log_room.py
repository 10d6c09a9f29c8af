"""A metadata log that finds no room when it is opened is opened again, and holds the same."""

from itertools import count

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import DiskExhausted
from quorumlog.wire.codec.identifiers import Epoch, Offset
from tests.support.storage.refusing import Refusing

SETTINGS = LogSettings(segment_bytes=200)
AHEAD = SnapshotId(Offset(9), Epoch(1))


def left_behind(*, is_clean: bool, has_snapshot: bool) -> SimDisk:
    """Return the disk of a process whose log has a torn end, or was closed."""
    disk = SimDisk()
    log = MetadataLog.open(disk, "/data", SETTINGS)
    for _ in range(5):
        log.append([bytes(60)], Epoch(1), wall_ms=0)
    if has_snapshot:
        assert log.snapshots.write(AHEAD, [], last_time_ms=0)
    if is_clean:
        log.close()
    else:
        log.flush()
        log.append([bytes(60)], Epoch(1), wall_ms=0)
        last = max(name for name in disk.listdir(f"/data/{DIRECTORY}") if name.endswith(".log"))
        path = f"/data/{DIRECTORY}/{last}"
        disk.cut(path, disk.size(path) - 1)
    disk.kill()
    return disk


@pytest.mark.parametrize("has_snapshot", [False, True])
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_log_that_finds_no_room_is_opened_again(is_clean: bool, has_snapshot: bool) -> None:
    end = AHEAD.end_offset if has_snapshot else 5
    for first in count():
        disk = left_behind(is_clean=is_clean, has_snapshot=has_snapshot)
        refusing = Refusing(disk, first, 1)
        try:
            log = MetadataLog.open(disk, "/data", SETTINGS)
        except DiskExhausted:
            log = MetadataLog.open(disk, "/data", SETTINGS)
        refusing.free()
        assert (log.end_offset, log.start) == (end, AHEAD if has_snapshot else None)
        log.append([b"next"], Epoch(1), wall_ms=0)
        assert log.flush() == end + 1
        if not refusing.has_refused:
            break
    assert first > 4

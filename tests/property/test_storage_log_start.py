"""Power loss at every operation while the log start moves up and segments are removed below it."""

from collections.abc import Callable
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.segment_list import SegmentList
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import decode_batches
from tests.property.test_storage_crashes import PowerLoss, at, lose_power
from tests.support.sizes import tries
from tests.support.storage.batches import DIRECTORY, batch, read_all

SETTINGS = LogSettings(segment_bytes=300, index_interval_bytes=0)
PARTITION = TopicPartition("topic", 0)
SEEDS = 3


class Life:
    """One process on one disk; what the disk must hold after it."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.written: list[str] = []  # by offset; one batch each
        self.flushed = self.start = self.kept_start = 0

    def live(self) -> None:
        self.disk.mkdir("/data")
        self.log = open_from_checkpoints(self.disk)
        self._append(9)
        self._flush()
        self._advance(5)
        self._keep()
        self._remove_dead()
        self._append(8)
        self._advance(12)
        self._flush()  # while segments are dead and still there
        self._keep()
        self._append(3)
        self._remove_dead()
        self._advance(18)
        self._remove_dead()  # before the start is kept: what is gone stays gone
        self._flush()
        self._advance(20)
        self._keep()
        self.log.close()

    def _remove_dead(self) -> None:
        """Remove them on a file system that keeps no order of names."""
        self.disk.keeps_order_of_names = False
        self.log.remove_dead_segments()
        self.disk.keeps_order_of_names = True

    def _append(self, count: int) -> None:
        for _ in range(count):
            self.written.append(f"value-{len(self.written)}" * 5)
            self.log.append_as_leader(batch(self.written[-1]), leader_epoch=0, wall_ms=0)

    def _flush(self) -> None:
        self.log.flush()
        self.flushed = len(self.written)
        self._write(RECOVERY_POINT_FILE, self.log.flushed_offset)

    def _advance(self, offset: int) -> None:
        self.start = offset
        self.log.advance_log_start_offset(offset)

    def _keep(self) -> None:
        self._write(LOG_START_FILE, Offset(self.start))
        self.kept_start = self.start
        self.log.epochs.truncate_from_start(self.start)

    def _write(self, name: str, offset: Offset) -> None:
        write_offset_checkpoint(self.disk, "/data", name, {PARTITION: offset})


def open_from_checkpoints(disk: SimDisk) -> Log:
    points = read_offset_checkpoint(disk, "/data", RECOVERY_POINT_FILE)
    starts = read_offset_checkpoint(disk, "/data", LOG_START_FILE)
    return Log.open(
        disk,
        DIRECTORY,
        SETTINGS,
        clean=False,
        recovery_point=points.get(PARTITION, 0),
        log_start_offset=starts.get(PARTITION),
    )


def check_after(life: Life) -> None:
    life.disk.on_operation = None
    life.disk.mkdir("/data")
    log = open_from_checkpoints(life.disk)
    start, end = log.log_start_offset, log.log_end_offset
    assert life.kept_start <= start <= max(life.start, life.kept_start)
    assert end >= life.flushed
    found = {
        record.offset: (record.value or b"").decode()
        for _, records in decode_batches(read_all(log))
        for record in records
        if record.offset >= start
    }
    assert found == {offset: life.written[offset] for offset in range(start, end)}
    if start < end:
        assert log.epochs.epoch_at(start) == 0
    log.remove_dead_segments()
    log.append_as_leader(batch("more"), leader_epoch=0, wall_ms=0)
    log.close()


def check_power_loss_at_every_operation(seeds: int = SEEDS) -> None:
    operations: list[str] = []
    Life(SimDisk(on_operation=lambda operation, path: operations.append(operation))).live()
    for number in range(1, len(operations) + 1):
        for seed in range(seeds):
            life = Life(SimDisk(on_operation=at(number, lose_power)))
            with pytest.raises(PowerLoss):
                life.live()
            life.disk.crash(Random(number * SEEDS + seed))
            check_after(life)


def test_the_start_never_falls_below_its_checkpoint_and_nothing_flushed_is_lost() -> None:
    check_power_loss_at_every_operation(tries(SEEDS))


def newest_first(self: SegmentList) -> list[str]:
    self._dead.reverse()
    return rename_dead(self)


def without_the_dead(
    self: SegmentList, flushed_offset: int, end_offset: int, health: LogHealth
) -> None:
    dead, self._dead = self._dead, []
    sync(self, flushed_offset, end_offset, health)
    self._dead = dead


def with_one_fsync(self: SegmentList) -> list[str]:
    """Rely on the order in which a file system keeps names."""
    disk = self._disk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "fsync_dir", lambda _: None)
        renamed = rename_dead(self)
    disk.fsync_dir(self._directory)
    return renamed


rename_dead, sync = SegmentList.rename_dead, SegmentList.sync


@pytest.mark.planted
@pytest.mark.parametrize(
    ("duty", "broken"),
    [
        ("rename_dead", newest_first),
        ("rename_dead", with_one_fsync),
        ("sync", without_the_dead),
    ],
)
def test_the_test_above_finds_a_list_that_neglects_the_dead(
    duty: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentList, duty, broken)
    with pytest.raises(AssertionError):
        check_power_loss_at_every_operation()

"""What the creation and the deletion of a log make durable, and what a crash on the way leaves."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch

MANY = [TopicPartition("many", index) for index in range(3)]
TOPIC_ID, OTHER_ID = TopicId(b"m" * 16), TopicId(b"o" * 16)
BATCH = encode_batch([Record(0, 1, None, b"x")])
DIRECTORY = "/data"


class PowerLoss(BaseException):
    """Not an Exception: a process that is gone handles nothing."""


class DirectoryDisk(SimDisk):
    """Renames directories, too: durable at once, as all that it does to them."""

    def rename(self, source: str, target: str) -> None:
        if source not in self._names:
            super().rename(source, target)
            return
        self.begin("rename", source)
        for kept in (self._names, self._durable_names):
            kept[target] = kept.pop(source)
        self._name_changes[target] = self._name_changes.pop(source)


def started(disk: SimDisk) -> LogDirectory:
    logs = LogDirectory(disk, DIRECTORY, LogSettings())
    logs.start()
    return logs


def open_all(logs: LogDirectory) -> dict[TopicPartition, Log]:
    return {at: logs.open(at, TOPIC_ID, {})[0] for at in MANY}


def test_a_new_log_costs_two_fsyncs_of_directories_and_one_of_a_file() -> None:
    operations: list[str] = []
    disk = SimDisk(on_operation=lambda operation, path: operations.append(operation))
    logs = started(disk)
    operations.clear()
    opened = open_all(logs)
    for log in opened.values():
        log.epochs.assign(0, 0)  # as its leader does
    count = Counter(operations)
    # The first mkdir of each is an fsync of the parent; the second finds the directory there.
    assert (count["mkdir"], count["fsync_dir"], count["fsync"]) == (6, 3, 3)


def test_a_mkdir_of_what_exists_makes_nothing_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the count above would be wrong: opening a log asks for its directory twice."""
    fsynced: list[str] = []
    monkeypatch.setattr(RealDisk, "fsync_dir", lambda disk, path: fsynced.append(path))
    for _ in range(2):
        RealDisk().mkdir(str(tmp_path / "many-0"))
    assert fsynced == [str(tmp_path)]


def test_deleting_many_costs_one_fsync_for_a_few_of_them() -> None:
    operations: list[str] = []
    disk = DirectoryDisk(on_operation=lambda operation, path: operations.append(operation))
    logs = started(disk)
    opened = open_all(logs)
    operations.clear()
    for at, log in opened.items():
        logs.delete(at, log)
    logs.remove_doomed()
    assert operations.count("fsync_dir") == 1
    assert operations.index("fsync_dir") < operations.index("unlink")
    assert disk.listdir(DIRECTORY) == []


def test_the_first_flush_makes_the_name_and_the_epoch_of_a_new_log_durable() -> None:
    for seed in range(20):
        disk = SimDisk()
        logs = started(disk)
        log, _ = logs.open(MANY[0], TOPIC_ID, {})
        log.epochs.assign(4, 0)
        log.append_as_leader(BATCH, leader_epoch=4, wall_ms=0)
        log.flush()
        disk.crash(Random(seed))
        log, _ = started(disk).open(MANY[0], TOPIC_ID, {})
        assert log.log_end_offset == 1
        assert log.epochs.entries == ((4, 0),)


def test_an_epoch_is_written_with_the_first_flush_not_with_its_first_record() -> None:
    path = f"{DIRECTORY}/many-0/leader-epoch-checkpoint"
    disk = SimDisk()
    log, _ = started(disk).open(MANY[0], TOPIC_ID, {})
    log.epochs.assign(4, 0)
    assert disk.durable_bytes(path) is None
    log.append_as_leader(BATCH, leader_epoch=4, wall_ms=0)
    assert disk.durable_bytes(path) is None
    log.flush()
    assert disk.durable_bytes(path) == b"0\n1\n4 0\n"


def live(disk: SimDisk) -> None:
    """Create many; delete one, and create it again."""
    logs = started(disk)
    opened = open_all(logs)
    for log in opened.values():
        log.epochs.assign(0, 0)
        log.append_as_leader(BATCH, leader_epoch=0, wall_ms=0)
        log.flush()
    logs.checkpoints.note_high_watermarks(dict.fromkeys(opened, Offset(1)))
    logs.checkpoints.note_recovery_points(opened)
    logs.checkpoints.write_all()
    logs.delete(MANY[0], opened[MANY[0]])
    logs.open(MANY[0], OTHER_ID, {})
    logs.remove_doomed()


def test_power_loss_anywhere_leaves_whole_logs_or_none() -> None:
    operations: list[str] = []
    live(DirectoryDisk(on_operation=lambda operation, path: operations.append(operation)))
    for number in range(1, len(operations) + 1):
        check_power_loss_at(number)


def check_power_loss_at(number: int) -> None:
    count = 0

    def on_operation(operation: str, path: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise PowerLoss

    disk = DirectoryDisk(on_operation=on_operation)
    with pytest.raises(PowerLoss):
        live(disk)
    disk.on_operation = None
    disk.crash(Random(number))
    logs = started(disk)
    opened = open_all(logs)
    for log in opened.values():
        assert log.log_end_offset in (0, 1)
        assert log.epochs.entries in ((), ((0, 0),))
        assert [header.base_offset for header in log.headers(0)] == [0] * log.log_end_offset
        log.append_as_leader(BATCH, leader_epoch=1, wall_ms=0)
    logs.remove_doomed()
    names = disk.listdir(DIRECTORY)
    assert not [name for name in names if name.endswith("-delete")]


def test_a_deletion_takes_no_name_that_an_earlier_one_has_left() -> None:
    disk = DirectoryDisk()
    logs = started(disk)
    log, _ = logs.open(MANY[0], TOPIC_ID, {})
    logs.delete(MANY[0], log)  # and dies before it is removed
    logs = started(disk)
    log, _ = logs.open(MANY[0], OTHER_ID, {})
    logs.delete(MANY[0], log)
    assert disk.listdir(DIRECTORY) == ["many-0.1-delete", "many-0.2-delete"]
    logs.remove_doomed()

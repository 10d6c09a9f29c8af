"""What the creation and the deletion of a log make durable, and what a crash on the way leaves."""

from collections import Counter
from collections.abc import Callable, Iterator
from errno import EIO, ENOSPC
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.log_directories import started as started_on
from tests.support.broker.log_directories import write

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
    return started_on(DIRECTORY, disk)


def opened(disk: SimDisk, at: TopicPartition = MANY[0], topic_id: TopicId = TOPIC_ID) -> Log:
    """Start, and open one log."""
    return started(disk).open(at, topic_id, {})[0]


def noting(disk_class: type[SimDisk] = SimDisk) -> tuple[SimDisk, list[str]]:
    """Return a disk and its operations."""
    operations: list[str] = []
    return disk_class(on_operation=lambda operation, _: operations.append(operation)), operations


def open_all(logs: LogDirectory) -> dict[TopicPartition, Log]:
    return {at: logs.open(at, TOPIC_ID, {})[0] for at in MANY}


def test_a_new_log_costs_no_fsync_until_it_is_flushed_and_nothing_until_it_has_a_record() -> None:
    disk, operations = noting()
    logs = started(disk)
    operations.clear()
    all_of_them = open_all(logs).values()
    for log in all_of_them:
        log.epochs.assign(0, 0)  # as its leader does
        log.flush()
    assert operations == []
    for log in all_of_them:
        write(log, BATCH)
    count = Counter(operations)
    assert (count["add_dir"], count["mkdir"], count["fsync_dir"], count["fsync"]) == (3, 0, 0, 0)
    operations.clear()
    for log in all_of_them:
        log.flush()
    # For each: partition.metadata, the epochs and the records; and the names of all of them, once.
    count = Counter(operations)
    assert (count["fsync"], count["fsync_dir"]) == (9, 2 * 3 + 1)


def test_a_second_mkdir_costs_no_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the count above would be wrong: opening a log asks for its directory twice."""
    fsynced: list[str] = []
    monkeypatch.setattr(RealDisk, "fsync_dir", lambda disk, path: fsynced.append(path))
    for _ in range(2):
        RealDisk().mkdir(str(tmp_path / "many-0"))
    assert fsynced == [str(tmp_path)]


def test_deleting_many_costs_one_fsync_for_a_few_of_them() -> None:
    disk, operations = noting(DirectoryDisk)
    logs = started(disk)
    all_of_them = open_all(logs)
    for log in all_of_them.values():
        write(log, BATCH)
    operations.clear()
    for at, log in all_of_them.items():
        logs.delete(at, log)
    logs.remove_doomed()
    assert operations.count("fsync_dir") == 1
    assert operations.index("fsync_dir") < operations.index("unlink")
    assert disk.listdir(DIRECTORY) == []


def test_the_first_flush_makes_the_name_and_the_epoch_of_a_new_log_durable() -> None:
    """The flush, not the first record."""
    path = f"{DIRECTORY}/many-0/leader-epoch-checkpoint"
    for seed in range(20):
        disk = SimDisk()
        log = opened(disk)
        log.epochs.assign(4, 0)
        assert disk.durable_bytes(path) is None
        write(log, BATCH, leader_epoch=4)
        assert disk.durable_bytes(path) is None
        log.flush()
        assert disk.durable_bytes(path) == b"0\n2\n4 0\n#crc32c 1070562615\n"
        disk.crash(Random(seed))
        log = opened(disk)
        assert log.log_end_offset == 1
        assert log.epochs.entries == ((4, 0),)


def refused_first_appends(code: int) -> Iterator[tuple[int, SimDisk, Log]]:
    """Let the disk refuse each operation of the first append, one at a time."""
    for number in count(1):
        left = number

        def refuse(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise OSError(code, f"planted in {operation}", path)

        disk = SimDisk()
        log = opened(disk)
        disk.on_operation = refuse
        try:
            write(log, BATCH)
        except StorageError:
            assert log.log_end_offset == 0
        disk.on_operation = None
        if left > 0:
            assert number > 6
            return
        yield number, disk, log


def test_a_first_record_without_room_is_refused_and_the_next_one_makes_the_log() -> None:
    for number, disk, log in refused_first_appends(ENOSPC):
        assert log.failure is None
        assert log.append_as_leader(BATCH, leader_epoch=0, wall_ms=0).first_offset == 0
        log.flush()
        disk.crash(Random(number))
        assert [header.base_offset for header in opened(disk).headers(0)] == [0]


def test_a_first_record_that_the_disk_cannot_take_fails_the_log() -> None:
    for _, disk, log in refused_first_appends(EIO):
        assert log.failure is not None
        disk.kill()
        again = opened(disk).append_as_leader(BATCH, leader_epoch=0, wall_ms=0)
        assert again.first_offset == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_starts_over_elsewhere_before_its_first_record_is_made_there(seed: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    log.truncate_fully_and_start_at(5)
    write(log, BATCH)
    log.flush()
    disk.crash(Random(seed))
    log = opened(disk)
    assert (log.log_start_offset, log.log_end_offset) == (5, 6)


def test_a_log_without_records_is_deleted_and_closed_without_a_word_to_the_disk() -> None:
    disk, operations = noting()
    logs = started(disk)
    operations.clear()
    first, second = (logs.open(at, TOPIC_ID, {})[0] for at in MANY[:2])
    first.epochs.assign(3, 0)
    first.close()
    logs.delete(MANY[1], second)
    assert operations == []
    assert disk.listdir(DIRECTORY) == []


@pytest.mark.parametrize("seed", range(50))
def test_power_loss_before_the_first_flush_leaves_what_can_be_opened(seed: int) -> None:
    """Whatever of the directory, its files and their contents is lost."""
    disk = SimDisk()
    for log in open_all(started(disk)).values():
        log.epochs.assign(0, 0)
        write(log, BATCH)
    disk.crash(Random(seed))
    for log in open_all(started(disk)).values():
        assert log.log_end_offset in (0, 1)
        assert [header.base_offset for header in log.headers(0)] == [0] * log.log_end_offset


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("must_last", [True, False])
def test_a_killed_processs_log_is_durable_after_a_flush(seed: int, must_last: bool) -> None:
    """Or at once, if what is found counts as durable."""
    disk = SimDisk()
    log = opened(disk)
    log.epochs.assign(4, 0)
    write(log, BATCH, leader_epoch=4)
    disk.kill()
    logs = started(disk)
    logs.options.must_last = must_last
    log, _ = logs.open(MANY[0], TOPIC_ID, {})
    assert (log.log_end_offset, log.flushed_offset) == (1, 1 if must_last else 0)
    if not must_last:
        write(log, BATCH, leader_epoch=4)
        assert log.flush() == 2
    flushed = log.flushed_offset
    disk.crash(Random(seed))
    log = opened(disk)
    assert log.log_end_offset == flushed
    assert log.epochs.entries == ((4, 0),)


def test_a_name_that_is_refused_is_made_durable_by_the_next_flush() -> None:
    refused = {"fsync_dir"}

    def on_operation(operation: str, path: str) -> None:
        if operation in refused and path == DIRECTORY:
            raise OSError(5, "input/output error")

    disk = SimDisk(on_operation=on_operation)
    log = opened(disk)
    write(log, BATCH, leader_epoch=4)
    with pytest.raises(StorageError, match="input/output error"):
        log.flush()
    assert log.flushed_offset == 0
    refused.clear()
    assert log.flush() == 1
    for seed in range(20):
        disk.crash(Random(seed))
        assert opened(disk).log_end_offset == 1


def live(disk: SimDisk) -> None:
    """Create many; delete one, and create it again."""
    logs = started(disk)
    made = open_all(logs)
    for log in made.values():
        log.epochs.assign(0, 0)
        write(log, BATCH)
        log.flush()
    logs.checkpoints.note_high_watermarks(dict.fromkeys(made, Offset(1)))
    logs.checkpoints.note_recovery_points(made)
    logs.checkpoints.write_all()
    logs.delete(MANY[0], made[MANY[0]])
    write(logs.open(MANY[0], OTHER_ID, {})[0], BATCH)
    logs.remove_doomed()


@pytest.mark.parametrize("loses_power", [True, False])
def test_an_end_anywhere_leaves_whole_logs_or_none(loses_power: bool) -> None:
    """Between a directory and its first file, too."""
    disk, operations = noting(DirectoryDisk)
    live(disk)
    for number in range(1, len(operations) + 1):
        end = (
            partial(DirectoryDisk.crash, rng=Random(number)) if loses_power else DirectoryDisk.kill
        )
        check_end_at(number, end)


def check_end_at(number: int, end: Callable[[DirectoryDisk], None]) -> None:
    done = 0

    def on_operation(operation: str, path: str) -> None:
        nonlocal done
        done += 1
        if done == number:
            raise PowerLoss

    disk = DirectoryDisk(on_operation=on_operation)
    with pytest.raises(PowerLoss):
        live(disk)
    disk.on_operation = None
    end(disk)
    logs = started(disk)
    for log in open_all(logs).values():
        assert log.log_end_offset in (0, 1)
        assert log.epochs.entries in ((), ((0, 0),))
        assert [header.base_offset for header in log.headers(0)] == [0] * log.log_end_offset
        write(log, BATCH, leader_epoch=1)
    logs.remove_doomed()
    names = disk.listdir(DIRECTORY)
    assert not [name for name in names if name.endswith("-delete")]


def test_a_deletion_takes_no_name_that_an_earlier_one_has_left() -> None:
    disk = DirectoryDisk()
    logs = started(disk)
    log, _ = logs.open(MANY[0], TOPIC_ID, {})
    write(log, BATCH)
    logs.delete(MANY[0], log)  # and dies before it is removed
    logs = started(disk)
    log, _ = logs.open(MANY[0], OTHER_ID, {})
    write(log, BATCH)
    logs.delete(MANY[0], log)
    assert disk.listdir(DIRECTORY) == ["many-0.1-delete", "many-0.2-delete"]
    logs.remove_doomed()


class SlowNamesDisk(DirectoryDisk):
    """Does something else between the fsync of names and its return."""

    meanwhile: Callable[[], None] | None = None

    def fsync_dir(self, path: str) -> None:
        super().fsync_dir(path)
        if path == DIRECTORY and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_is_made_again_while_names_are_synced_is_not_taken_for_named(seed: int) -> None:
    disk = SlowNamesDisk()
    logs = started(disk)
    first, _ = logs.open(MANY[0], TOPIC_ID, {})
    former, _ = logs.open(MANY[1], TOPIC_ID, {})
    write(former, BATCH)
    again: list[Log] = []

    def make_again() -> None:
        logs.delete(MANY[1], former)
        logs.remove_doomed()
        again.append(logs.open(MANY[1], OTHER_ID, {})[0])
        again[0].append_as_leader(BATCH, leader_epoch=0, wall_ms=0)

    disk.meanwhile = make_again
    write(first, BATCH)
    first.flush()
    again[0].flush()
    disk.crash(Random(seed))
    assert opened(disk, MANY[1], OTHER_ID).log_end_offset == 1


def test_epochs_that_a_recovery_has_found_outlive_a_second_kill() -> None:
    """The recovery point is written between the two, as it is now and then."""
    disk = SimDisk()
    logs = started(disk)
    log, _ = logs.open(MANY[0], TOPIC_ID, {})
    write(log, BATCH, leader_epoch=1)
    log.flush()
    for leader_epoch in (2, 3):
        write(log, BATCH, leader_epoch=leader_epoch)
    log.roll(3)
    write(log, BATCH, leader_epoch=3)
    epochs = log.epochs.entries
    for _ in range(2):
        disk.kill()
        logs = started(disk)
        log, _ = logs.open(MANY[0], TOPIC_ID, {})
        assert log.epochs.entries == epochs
        logs.checkpoints.note_recovery_points({MANY[0]: log})
        logs.checkpoints.write_recovery_points()

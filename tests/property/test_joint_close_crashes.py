"""Many logs are closed together, and power is lost at every operation of that."""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log import log_directory, producer_loading
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import decode_batches
from tests.support.storage.batches import batch, read_all

DIRECTORY = "/data"
TOPIC_ID = TopicId(b"t" * 16)
LOGS = [TopicPartition("topic", index) for index in range(3)]
SETTINGS = LogSettings(segment_bytes=300, index_interval_bytes=0)
VALUES = tuple("abcdefgh")  # in each log
SEEDS = 4


class PowerLoss(BaseException):
    """Not an Exception: a process that is gone handles nothing."""


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_directory, "CLOSED_TOGETHER_MIN", len(LOGS))


class Process:
    """A broker's logs on a disk, without the broker."""

    def __init__(self, disk: SimDisk) -> None:
        self.directory = LogDirectory(disk, DIRECTORY, SETTINGS)
        self.directory.start()
        self.logs: dict[TopicPartition, Log] = {}

    def open(self) -> None:
        for at in LOGS:
            self.logs[at], _ = self.directory.open(at, TOPIC_ID, {"segment.bytes": "300"})

    def append(self, values: tuple[str, ...] = VALUES) -> None:
        for log in self.logs.values():
            for value in values:
                log.append_as_leader(batch(value * 20), leader_epoch=3, wall_ms=0)

    def close(self) -> None:
        """Do what `Checkpoints.close_logs` does."""
        self.directory.begin_closing(self.logs.values())
        for log in self.logs.values():
            producer_loading.work_to_spare_reads(log, ProducerStates(), log.log_end_offset)()
            log.close()
        known = dict.fromkeys(self.logs, Offset(0))
        self.directory.finish(self.logs, known, 7, is_clean=True)


def operations(disk: SimDisk, work: Callable[[], None]) -> list[str]:
    """Do the work; return what the disk was asked."""
    seen: list[str] = []
    disk.on_operation = lambda operation, _: seen.append(operation)
    work()
    disk.on_operation = None
    return seen


def failing_at(number: int, error: BaseException) -> Callable[[str, str], None]:
    """Return what makes the disk raise at one operation."""
    left = iter(range(number, -1, -1))

    def on_operation(_operation: str, _path: str) -> None:
        if next(left, None) == 0:
            raise error

    return on_operation


def written() -> tuple[SimDisk, Process]:
    disk = SimDisk()
    process = Process(disk)
    process.open()
    process.append()
    return disk, process


def values_of(log: Log) -> tuple[str, ...]:
    records = [record for _, batch in decode_batches(read_all(log)) for record in batch]
    return tuple((record.value or b"").decode()[0] for record in records)


def after_power_loss(disk: SimDisk, seed: int) -> tuple[bool, list[tuple[str, ...]]]:
    """Start again; return whether the stop was clean, and what is in the logs."""
    disk.on_operation = None
    disk.crash(Random(seed))
    process = Process(disk)
    process.open()
    return process.directory.was_clean, [values_of(log) for log in process.logs.values()]


def test_a_stop_of_many_logs_syncs_no_file_and_no_directory_of_a_log() -> None:
    disk, process = written()
    seen = operations(disk, process.close)
    before_checkpoints = seen[: len(seen) - seen[::-1].index("sync_file_system")]
    assert before_checkpoints.count("sync_file_system") == 2
    assert not {"fsync", "fsync_dir"} & {*before_checkpoints}
    assert after_power_loss(disk, 0) == (True, [VALUES] * len(LOGS))


def test_few_logs_do_not_wait_for_what_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_directory, "CLOSED_TOGETHER_MIN", len(LOGS) + 1)
    disk, process = written()
    assert "sync_file_system" not in operations(disk, process.close)
    assert after_power_loss(disk, 0) == (True, [VALUES] * len(LOGS))


def test_power_is_lost_while_logs_are_closed_together() -> None:
    disk, process = written()
    for number in range(len(operations(disk, process.close))):
        for seed in range(SEEDS):
            disk, process = written()
            disk.on_operation = failing_at(number, PowerLoss())
            with pytest.raises(PowerLoss):
                process.close()
            was_clean, found = after_power_loss(disk, seed)
            for values in found:
                assert values == VALUES[: len(values)]
                assert len(values) == len(VALUES) or not was_clean


def test_an_operation_fails_while_logs_are_closed_together() -> None:
    """What is said to be clean, or durable, is there if power is lost right after."""
    disk, process = written()
    for number in range(len(operations(disk, process.close))):
        disk, process = written()
        disk.on_operation = failing_at(number, OSError(errno.EIO, "broken"))
        with suppress(StorageError):
            process.close()
        was_clean, found = after_power_loss(disk, number)
        if was_clean:
            assert found == [VALUES] * len(LOGS)


def test_a_write_that_was_lost_in_silence_is_no_clean_stop() -> None:
    disk = SimDisk()
    disk.loses_write_back = lambda path: path.startswith(f"{DIRECTORY}/{LOGS[0]}/")
    process = Process(disk)
    process.open()
    process.append()
    with pytest.raises(StorageError, match="durable"):
        process.close()
    was_clean, found = after_power_loss(disk, 0)
    assert not was_clean
    assert len(found[0]) < len(VALUES)


def test_the_file_of_an_older_process_is_fsynced_by_itself() -> None:
    """That may tell of a write that failed before this process could be told."""
    disk, _ = written()
    disk.kill()
    process = Process(disk)
    process.open()
    process.append(("i",))
    files: list[str] = []
    disk.on_operation = lambda operation, path: (
        files.append(path) if operation == "fsync" and path.endswith(".log") else None
    )
    process.close()
    assert {path.rpartition("/")[0] for path in files} == {f"{DIRECTORY}/{at}" for at in LOGS}

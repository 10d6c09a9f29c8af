"""Power loss at every operation: what was flushed is there, the rest is a prefix of what was."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.checkpoints import (
    RECOVERY_POINT_FILE,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.segment import Segment
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import HEADER_BYTES, decode_batches
from tests.support.sizes import tries
from tests.support.storage.batches import DIRECTORY, batch, open_log, read_all

SETTINGS = LogSettings(segment_bytes=300, index_interval_bytes=0)
PARTITION = TopicPartition("topic", 0)
SEEDS = 4


class PowerLoss(BaseException):
    """Not an Exception: a process that is gone handles nothing."""


class Life:
    """One process on one disk, and what it was promised."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.possible: list[tuple[str, ...]] = [()]  # what the log may hold, from now on
        self.flushed: tuple[str, ...] = ()  # what it must hold at least
        self.written: tuple[str, ...] = ()
        self.log: Log | None = None

    def live(self) -> None:
        disk = self.disk
        disk.mkdir("/data")
        self.log = open_log(disk, SETTINGS)
        self._append("abcde", 0)
        self._flush()
        self._append("fghijk", 1)
        self._truncate(7)
        self._append("lm", 3)
        self._flush()
        self._truncate(2)
        self._append("nopqrstuvw", 4)
        self._flush()
        self._append("xyz", 4)
        self.log.close()

    def _append(self, values: str, leader_epoch: int) -> None:
        assert self.log is not None
        for value in values:
            after = (*self.written, f"{value}{leader_epoch}" * 20)
            self.possible.append(after)
            self.log.append_as_leader(batch(after[-1]), leader_epoch=leader_epoch, wall_ms=0)
            self.written = after

    def _flush(self) -> None:
        assert self.log is not None
        self.log.flush()
        self.flushed = self.written
        self._checkpoint(self.log.flushed_offset)

    def _truncate(self, offset: int) -> None:
        assert self.log is not None
        self.flushed = self.flushed[:offset]
        self.possible.append(self.written[:offset])
        self.log.truncate_to(offset)
        self.written = self.written[:offset]
        self._checkpoint(Offset(min(offset, self.log.flushed_offset)))
        # From here on nothing of what was cut may come back.
        self.possible = [self.written[:end] for end in range(len(self.written) + 1)]

    def _checkpoint(self, recovery_point: Offset) -> None:
        write_offset_checkpoint(
            self.disk, "/data", RECOVERY_POINT_FILE, {PARTITION: recovery_point}
        )


def count_operations() -> int:
    operations: list[str] = []
    Life(SimDisk(on_operation=lambda operation, path: operations.append(operation))).live()
    return len(operations)


def at(number: int, action: Callable[[], None]) -> Callable[[str, str], None]:
    count = 0

    def on_operation(operation: str, path: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            action()

    return on_operation


def lose_power() -> None:
    raise PowerLoss


def values_of(log: Log) -> tuple[str, ...]:
    records = [record for _, batch in decode_batches(read_all(log)) for record in batch]
    assert [record.offset for record in records] == list(range(len(records)))
    return tuple((record.value or b"").decode() for record in records)


def check_after(life: Life, disk: SimDisk) -> None:
    disk.on_operation = None
    disk.mkdir("/data")
    points = read_offset_checkpoint(disk, "/data", RECOVERY_POINT_FILE)
    log = open_log(disk, SETTINGS, recovery_point=points.get(PARTITION, Offset(0)))
    found = values_of(log)
    assert found[: len(life.flushed)] == life.flushed
    assert any(whole[: len(found)] == found for whole in life.possible)
    epochs = [int(value[1]) for value in found]
    assert log.epochs.entries == tuple((epoch, epochs.index(epoch)) for epoch in sorted({*epochs}))
    log.append_as_leader(batch("more"), leader_epoch=9, wall_ms=0)
    log.flush()
    log.close()
    log = open_log(disk, SETTINGS, clean=True)
    assert values_of(log) == (*found, "more")


def check_power_loss_at_every_operation(seeds: int = SEEDS) -> None:
    for number in range(1, count_operations() + 1):
        for seed in range(seeds):
            disk = SimDisk(on_operation=at(number, lose_power))
            life = Life(disk)
            with pytest.raises(PowerLoss):
                life.live()
            disk.crash(Random(number * SEEDS + seed))
            check_after(life, disk)


def test_kafka_10527_power_loss_anywhere_leaves_a_prefix_with_all_that_was_flushed() -> None:
    check_power_loss_at_every_operation(tries(SEEDS))


SIM = "quorumlog.chaos.simulation.kernel.sim_disk."
STORAGE = "quorumlog.storage."


@pytest.mark.planted
@pytest.mark.parametrize(
    "duty",
    [
        STORAGE + "io.segment.Segment.sync",
        STORAGE + "core.recovery.validate_batch",
        SIM + "SimDisk.fsync_dir",
    ],
)
def test_the_test_above_finds_a_log_that_skips_one_duty(
    duty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duty, lambda *args: None)
    with pytest.raises((AssertionError, StorageError, CorruptBatch)):
        check_power_loss_at_every_operation()


@pytest.mark.planted
def test_the_test_above_finds_a_truncation_that_is_not_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Segment.truncate_to

    def truncate_to(self: Segment, offset: int) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(SIM + "SimFile.fsync", lambda file: None)
            return original(self, offset)

    monkeypatch.setattr(Segment, "truncate_to", truncate_to)
    with pytest.raises(AssertionError):
        check_power_loss_at_every_operation()


@pytest.mark.planted
def test_the_test_above_finds_a_flush_that_leaves_out_new_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = LeaderEpochCache.write

    def write(cache: LeaderEpochCache) -> None:
        if cache._written is None or not cache._written.entries:
            original(cache)

    monkeypatch.setattr(LeaderEpochCache, "write", write)
    # It would rebuild the file: the flush alone must see to it.
    monkeypatch.setattr(STORAGE + "io.loading.contradiction", lambda *args: None)
    with pytest.raises(AssertionError):
        check_power_loss_at_every_operation()


def test_power_loss_in_the_middle_of_recovery_costs_nothing_more() -> None:
    operations = count_operations()
    for number in range(operations // 2, operations, 7):
        for second in range(1, 40, 3):
            disk = SimDisk(on_operation=at(number, lose_power))
            life = Life(disk)
            with pytest.raises(PowerLoss):
                life.live()
            disk.crash(Random(number))
            disk.on_operation = at(second, lose_power)
            try:
                check_points = read_offset_checkpoint(disk, "/data", RECOVERY_POINT_FILE)
                open_log(disk, SETTINGS, recovery_point=check_points.get(PARTITION, Offset(0)))
            except PowerLoss:
                disk.crash(Random(second))
            check_after(life, disk)


def fail_with_eio() -> None:
    raise OSError(errno.EIO, "input/output error")


def test_kafka_7866_an_io_error_at_any_operation_fails_the_log_or_leaves_it_as_it_was() -> None:
    for number in range(1, count_operations() + 1):
        disk = SimDisk(on_operation=at(number, fail_with_eio))
        life = Life(disk)
        with pytest.raises((StorageError, OSError)):
            life.live()
        log = life.log
        if log is not None and log.failure is None:
            assert values_of(log) in life.possible
        disk.on_operation = None
        disk.crash(Random(number))
        check_after(life, disk)


@pytest.mark.parametrize("room", range(0, 200, 9))
def test_kafka_7866_a_full_disk_leaves_the_log_as_it_was(room: int) -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    log.append_as_leader(batch("a"), leader_epoch=0, wall_ms=0)
    before = read_all(log)
    disk.capacity_bytes = disk.bytes_used() + room
    two = batch("b" * 40, "c" * 40)
    if len(two) > room:
        with pytest.raises(StorageError, match="No space"):
            log.append_as_leader(two, leader_epoch=0, wall_ms=0)
        assert (log.log_end_offset, read_all(log), log.failure) == (1, before, None)
    disk.capacity_bytes = None
    log.append_as_leader(two, leader_epoch=0, wall_ms=0)
    expected = read_all(log)
    disk.kill()
    assert read_all(open_log(disk, LogSettings())) == expected


def test_a_torn_tail_is_cut_at_every_byte_of_the_last_batch() -> None:
    first, last = batch("first", leader_epoch=0), batch("last", base_offset=1, leader_epoch=1)
    for size in range(len(last)):
        for rest in (b"", bytes(len(last) - size), b"\xff" * (len(last) - size)):
            if last[:size] + rest == last:
                continue  # the last byte is a zero
            disk = SimDisk()
            log = open_log(disk)
            log.append_as_follower(first + last)
            log.close(clean=False)
            file = disk.open(f"{DIRECTORY}/{0:020d}.log")
            file.truncate(len(first) + size)
            file.append([rest])
            log = open_log(disk)
            assert read_all(log) == first
            assert log.epochs.entries == ((0, 0),)
            assert log.append_as_follower(last).last_offset == 1


def test_a_flipped_bit_in_a_middle_segment_ends_an_unclean_log_before_it() -> None:
    values = [f"value-{index:02}" for index in range(30)]
    for seed in range(40):
        disk, rng = SimDisk(), Random(seed)
        log = open_log(disk)
        for value in values:
            log.append_as_leader(batch(value), leader_epoch=0, wall_ms=0)
        base_offset = log.segment_base_offsets[3]
        log.close()
        position = disk.flip_bit(f"{DIRECTORY}/{base_offset:020d}.log", rng)
        in_batch = position % len(batch(values[0]))
        log = open_log(disk)
        end = base_offset + position // len(batch(values[0]))
        if 12 <= in_batch < 16 and log.log_end_offset != end:
            continue  # the leader epoch is under no checksum, and a later one is no fault
        assert in_batch < HEADER_BYTES or log.log_end_offset == end
        assert log.log_end_offset <= end
        assert b"".join(batch(v, base_offset=o, leader_epoch=0) for o, v in enumerate(values))[
            : log.size
        ] == read_all(log)


def test_kafka_16541_a_torn_epoch_checkpoint_is_rebuilt_from_the_log() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for leader_epoch in range(12):
        log.append_as_leader(batch("a", "b"), leader_epoch=leader_epoch, wall_ms=0)
    expected = log.epochs.entries
    log.close()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    whole = disk.durable_bytes(path)
    assert whole is not None
    for size in range(len(whole)):
        file = disk.open(path)
        file.truncate(0)
        file.append([whole[:size]])
        log = open_log(disk, clean=True)
        assert log.epochs.entries == expected
        log.close()
        assert LeaderEpochCache.open(disk, DIRECTORY, has_file=True).entries == expected

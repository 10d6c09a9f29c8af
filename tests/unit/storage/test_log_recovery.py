"""Opening what a crash, a bad disk or another program has left."""

import errno
from functools import partial
from itertools import count
from random import Random
from typing import Any

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.log_index import CorruptIndex, OffsetIndex, TimeIndex
from quorumlog.storage.core.recovery import RecentBatches
from quorumlog.storage.core.segment_index import SegmentIndex
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import BatchHeader
from tests.support.broker.produced import produced
from tests.support.storage.batches import (
    COMPACTED,
    DIRECTORY,
    TINY,
    VALUES,
    batch,
    file_of,
    fill,
    log_of,
    open_log,
    read_all,
    stamped,
)
from tests.support.storage.crashes import fail_on, lose_power_at


def closed_log() -> tuple[SimDisk, tuple[int, ...]]:
    """The disk of a log that was closed cleanly, and where its segments start."""
    disk = SimDisk()
    log = log_of(disk=disk)
    log.close()
    return disk, log.segment_base_offsets


def closed_log_of_epochs(*, clean: bool) -> SimDisk:
    """A log of the epochs 1, 4 and 6, with four records each, without their checkpoint."""
    disk = SimDisk()
    log = open_log(disk)
    for leader_epoch in (1, 4, 6):
        fill(log, VALUES[:4], leader_epoch=leader_epoch)
    log.flush()
    log.close(clean=clean)
    disk.unlink(f"{DIRECTORY}/leader-epoch-checkpoint")
    return disk


def every_answer(log: Log) -> list[object]:
    reads = [
        log.read(offset, max_bytes=max_bytes, end_offset=end_offset)
        for offset in range(20)
        for end_offset in (offset + 1, 15, 20)
        for max_bytes in (1, 170, 1000)
    ]
    return [*reads, *(log.time_lookup().first_since(time) for time in (0, 1000, 1001))]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "zeros", "falling"])
@pytest.mark.parametrize("which", [0, -1])
def test_a_corrupt_index_is_rebuilt_even_after_a_clean_shutdown(
    suffix: str, damage: str, which: int
) -> None:
    disk, base_offsets = closed_log()
    expected = every_answer(open_log(disk))
    path = file_of(base_offsets[which], suffix)
    whole = read_file(disk, path)
    content = {
        "cut": whole[:-1],
        "empty": b"",
        "zeros": whole + bytes(24),
        "falling": whole + whole[:12],
    }
    if damage == "missing":
        disk.unlink(path)
    else:
        write_file_durably(disk, path, content[damage])
    log = open_log(disk, clean=True)
    assert every_answer(log) == expected
    fill(log, ["more"])
    log.close()
    assert read_all(open_log(disk, clean=True)) == stamped([*VALUES, "more"])


def test_every_byte_that_recovery_reads_is_noted_and_a_clean_log_is_not_read() -> None:
    disk, base_offsets = closed_log()
    noted: list[int] = []
    open_log(disk, note_read=noted.append)
    assert noted == [disk.size(file_of(offset, ".log")) for offset in base_offsets]
    open_log(disk, note_read=noted.append, clean=True)
    assert len(noted) == len(base_offsets)


def test_a_log_that_was_not_closed_cleanly_after_all_is_recovered() -> None:
    disk, base_offsets = closed_log()
    file = disk.open(file_of(base_offsets[-1], ".log"))
    file.append([b"torn"])
    assert read_all(open_log(disk, clean=True)) == stamped(VALUES)


def test_segments_below_the_recovery_point_are_not_read_whole() -> None:
    disk, base_offsets = closed_log()
    read: list[str] = []
    disk.flip_bit(file_of(base_offsets[0], ".log"), Random(3))
    disk.on_operation = lambda operation, path: read.append(path) if operation == "pread" else None
    log = open_log(disk, recovery_point=base_offsets[-1])
    assert log.log_end_offset == 20
    assert read.count(file_of(base_offsets[0], ".log")) <= 3


def test_a_hole_between_segments_ends_the_log() -> None:
    disk, base_offsets = closed_log()
    disk.unlink(file_of(base_offsets[2]))
    log = open_log(disk)
    assert (log.log_end_offset, log.segment_base_offsets) == (base_offsets[2], base_offsets[:2])
    suffixes = (".index", ".log", ".timeindex")
    left = [file_of(offset, suffix) for offset in base_offsets[:2] for suffix in suffixes]
    checkpoint = f"{DIRECTORY}/leader-epoch-checkpoint"
    assert [f"{DIRECTORY}/{name}" for name in disk.listdir(DIRECTORY)] == [*left, checkpoint]


def test_leftovers_are_swept_and_an_empty_swap_file_is_refused() -> None:
    disk, _ = closed_log()
    names = disk.listdir(DIRECTORY)
    for name in (f"{7:020d}.log.deleted", f"{7:020d}.log.cleaned", "x.tmp", f"{7:020d}.index"):
        disk.open(f"{DIRECTORY}/{name}", create=True)
    open_log(disk, clean=True).close()
    assert disk.listdir(DIRECTORY) == names
    disk.open(f"{DIRECTORY}/{7:020d}.log.swap", create=True)
    with pytest.raises(StorageError, match="swap"):
        open_log(disk, clean=True)


@pytest.mark.parametrize(("clean", "recovery_point"), [(False, 0), (False, 12), (True, 12)])
def test_epochs_whose_checkpoint_was_lost_are_rebuilt_below_the_recovery_point_too(
    clean: bool, recovery_point: int
) -> None:
    disk = closed_log_of_epochs(clean=clean)
    log = open_log(disk, clean=clean, recovery_point=recovery_point)
    assert log.epochs.entries == ((1, 0), (4, 4), (6, 8))


def test_epochs_beyond_the_recovered_end_are_dropped() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    fill(log, ["a"], leader_epoch=1)
    log.flush()
    fill(log, ["b"], leader_epoch=2)
    disk.kill()
    disk.open(file_of(0, ".log")).truncate(len(batch("a")) + 5)
    log = open_log(disk, LogSettings())
    assert (log.log_end_offset, log.epochs.entries) == (1, ((1, 0),))


def test_a_log_that_lost_what_was_deleted_goes_on_where_it_was_to_start() -> None:
    disk = SimDisk()
    log = log_of(disk=disk)
    log.advance_log_start_offset(17)
    disk.kill()
    for offset in (17, 30):
        log = Log.open(disk, DIRECTORY, TINY, clean=False, log_start_offset=offset)
        assert (log.log_start_offset, log.log_end_offset) == (offset, max(offset, 20))
        assert bool(log.epochs.entries) == (offset < 20)
        disk.kill()


def test_a_batch_larger_than_a_recovery_chunk_is_recovered() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    fill(log, ["a", "b" * (3 << 20), "c"])
    expected = read_all(log, max_bytes=8 << 20)
    disk.kill()
    assert read_all(open_log(disk, LogSettings()), max_bytes=8 << 20) == expected


def test_remnants_of_an_older_epoch_do_not_follow_newer_batches() -> None:
    disk = SimDisk()
    disk.mkdir(DIRECTORY)
    file = disk.open(file_of(0, ".log"), create=True)
    file.append([batch("new", leader_epoch=5), batch("old", base_offset=1, leader_epoch=3)])
    assert open_log(disk).log_end_offset == 1


def test_a_hole_left_by_recovery_never_shows_where_gaps_are_allowed() -> None:
    for number in count():
        disk = SimDisk()
        log = log_of(VALUES, COMPACTED, disk=disk)
        _, second, third, *_ = log.segment_base_offsets
        log.close()
        content = bytearray(read_file(disk, file_of(second)))
        content[-1] ^= 1
        write_file_durably(disk, file_of(second), bytes(content))
        is_lost = lose_power_at(disk, number, partial(open_log, disk, COMPACTED), None)
        if is_lost:
            disk.crash(Random(number))
        disk.kill()
        assert read_all(open_log(disk, COMPACTED)) == stamped(VALUES[: third - 1])
        if not is_lost:
            break


@pytest.mark.parametrize("seed", range(20))
def test_what_was_cut_or_recovered_or_started_anew_is_so_after_power_loss(seed: int) -> None:
    disk = SimDisk()
    log = log_of(VALUES, COMPACTED, disk=disk)
    log.flush()
    end = log.segment_base_offsets[2] - 1
    log.truncate_to(end)
    disk.crash(Random(seed))
    assert read_all(open_log(disk, COMPACTED)) == stamped(VALUES[:end])

    disk = SimDisk()
    log = log_of(disk=disk)
    log.truncate_fully_and_start_at(1000)
    fill(log, ["a"], leader_epoch=1)
    log.flush()
    disk.crash(Random(seed))
    log = open_log(disk)
    assert read_all(log) == batch("a", base_offset=1000, leader_epoch=1)
    assert log.epochs.entries == ((1, 1000),)

    disk = SimDisk()
    log_of(disk=disk)
    disk.kill()
    assert open_log(disk).flushed_offset == 20
    disk.crash(Random(seed))
    assert read_all(open_log(disk)) == stamped(VALUES)


def test_an_offset_too_far_from_its_segment_ends_the_log() -> None:
    settings = LogSettings(index_interval_bytes=0, cleanup_policy="compact")
    good = batch("a", leader_epoch=0)
    for base_offset in (2**31, 2**32, 2**62):
        for clean in (True, False):
            disk = SimDisk()
            disk.mkdir(DIRECTORY)
            far = batch("b", base_offset=base_offset, leader_epoch=0)
            write_file_durably(disk, file_of(0, ".log"), good + far)
            assert read_all(open_log(disk, settings, clean=clean)) == good


def test_kafka_10533_a_failed_fsync_is_final_and_claims_nothing() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, ["a"])
    log.flush()
    fill(log, ["b"])
    disk.on_operation = fail_on("fsync", ".log")
    with pytest.raises(StorageError, match="flush"):
        log.flush()
    disk.on_operation = None
    assert log.flushed_offset == 1
    for action in (log.flush, lambda: fill(log, ["c"]), lambda: read_all(log), log.close):
        with pytest.raises(StorageError):
            action()
    disk.crash(Random(1))
    assert read_all(open_log(disk)) == stamped(["a"])


def test_kafka_7866_an_append_that_cannot_be_undone_fails_the_log() -> None:
    disk = SimDisk(capacity_bytes=0)
    log = open_log(disk)
    disk.capacity_bytes = disk.bytes_used() + 100
    disk.on_operation = fail_on("truncate", ".log")
    with pytest.raises(StorageError, match="undo"):
        log.append_as_follower(batch("a", "b", "c", "d", "e" * 100))
    assert log.failure is not None
    disk.on_operation = None
    disk.kill()
    assert open_log(disk).log_end_offset == 0


def test_kafka_7866_an_append_that_met_an_io_error_fails_the_log() -> None:
    disk = SimDisk()
    log = log_of(["a"], disk=disk)
    disk.on_operation = fail_on("append", ".log")
    with pytest.raises(StorageError, match="append"):
        fill(log, ["b"])
    disk.on_operation = None
    with pytest.raises(StorageError, match="append"):
        fill(log, ["b"])
    disk.kill()
    assert read_all(open_log(disk)) == stamped(["a"])


def test_a_segment_that_cannot_be_started_leaves_the_log_as_it_was() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings(segment_bytes=1))
    fill(log, ["a"])
    disk.on_operation = fail_on("open", ".log", errno.EMFILE)
    with pytest.raises(StorageError, match="start a segment"):
        fill(log, ["b"])
    disk.on_operation = None
    fill(log, ["b"])
    assert read_all(log) == stamped(["a", "b"])


def test_a_segment_that_was_started_in_part_fails_the_log() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings(segment_bytes=200))
    fill(log, ["a"])
    disk.on_operation = fail_on("truncate", ".log")
    with pytest.raises(StorageError, match="start a segment"):
        fill(log, ["b" * 200])
    disk.on_operation = None
    with pytest.raises(StorageError, match="start a segment"):
        fill(log, ["b"])  # it would go to the old segment, behind the empty one
    disk.kill()
    log = open_log(disk)
    fill(log, ["b"])
    assert read_all(log) == stamped(["a", "b"])


@pytest.mark.parametrize("operation", ["open", "fsync", "rename", "fsync_dir"])
def test_records_do_not_count_as_flushed_while_their_epoch_cannot_be_written(
    operation: str,
) -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    fill(log, ["a"], leader_epoch=1)
    suffix = "" if operation == "fsync_dir" else ".tmp"
    disk.on_operation = fail_on(operation, suffix, errno.ENOSPC)
    with pytest.raises(StorageError, match="leader-epoch-checkpoint"):
        log.flush()
    assert log.flushed_offset == 0
    disk.on_operation = None
    assert log.flush() == 1
    disk.crash(Random(0))
    assert open_log(disk, LogSettings(), recovery_point=1).epochs.entries == ((1, 0),)


@pytest.mark.parametrize("end_offset", [1, 0])
def test_a_crash_after_a_truncation_brings_back_no_epoch_that_was_cut(end_offset: int) -> None:
    """The file still names them: it is written with the next flush."""
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    for leader_epoch in range(3):
        fill(log, ["a"], leader_epoch=leader_epoch)
    log.flush()
    log.truncate_to(end_offset)
    fill(log, ["b"], leader_epoch=2)
    disk.kill()
    log = open_log(disk, LogSettings())
    assert log.epochs.end_offset_for(1, 9).end_offset == log.log_end_offset - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes", 1 << 31),
        ("segment_bytes", 0),
        ("segment_ms", 0),
        ("segment_index_bytes", 1),
        ("index_interval_bytes", -1),
    ],
)
def test_settings_that_the_formats_cannot_hold_are_refused(name: str, value: int) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name.replace("_", ".")):
        LogSettings(**wrong)
    assert TINY.may_have_gaps is False


def noted(from_offset: int, *batches: BatchHeader) -> RecentBatches:
    recent = RecentBatches(from_offset)
    for header in batches:
        recent.take(header)
    return recent


def test_a_transaction_in_any_segment_has_the_log_read_a_second_time() -> None:
    plain, transactional = produced(0), produced(1, is_transactional=True)
    for first, second in ((plain, transactional), (transactional, plain)):
        recent = noted(0, first).with_later(noted(5, second))
        assert recent.has_transactions
        assert recent.since(0) is None
    later = produced(1)._replace(base_offset=5)
    recent = noted(0, plain).with_later(noted(5, later))
    assert not recent.has_transactions
    assert recent.since(0) == [plain, later]


def test_an_index_that_points_to_the_end_of_its_segment_is_corrupt() -> None:
    offsets = OffsetIndex(0)
    offsets.append(3, 100)
    times = TimeIndex(0)
    times.maybe_append(1000, 3)
    content = {"offsets": offsets.encode(), "times": times.encode()}
    assert SegmentIndex.decode(0, LogSettings(), **content, size=101).size == 100
    with pytest.raises(CorruptIndex, match="behind byte 100"):
        SegmentIndex.decode(0, LogSettings(), **content, size=100)

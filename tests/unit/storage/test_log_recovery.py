"""Opening what a crash, a bad disk or another program has left."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.storage.io.log import Log
from tests.support.storage.batches import DIRECTORY, TINY, batch, fill, open_log, read_all, stamped

VALUES = [f"value-{index}" for index in range(20)]


def closed_log(*, flips_before_close: bool = False) -> tuple[SimDisk, tuple[int, ...]]:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, VALUES)
    base_offsets = log.segment_base_offsets
    log.close(clean=not flips_before_close)
    return disk, base_offsets


def index_path(base_offset: int, suffix: str) -> str:
    return f"{DIRECTORY}/{base_offset:020d}{suffix}"


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
    path = index_path(base_offsets[which], suffix)
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
    assert noted == [disk.size(index_path(offset, ".log")) for offset in base_offsets]
    open_log(disk, note_read=noted.append, clean=True)
    assert len(noted) == len(base_offsets)


def test_a_log_that_was_not_closed_cleanly_after_all_is_recovered() -> None:
    disk, base_offsets = closed_log()
    file = disk.open(index_path(base_offsets[-1], ".log"))
    file.append([b"torn"])
    assert read_all(open_log(disk, clean=True)) == stamped(VALUES)


def test_segments_below_the_recovery_point_are_not_read_whole() -> None:
    disk, base_offsets = closed_log()
    read: list[str] = []
    disk.flip_bit(index_path(base_offsets[0], ".log"), Random(3))
    disk.on_operation = lambda operation, path: read.append(path) if operation == "pread" else None
    log = open_log(disk, recovery_point=base_offsets[-1])
    assert log.log_end_offset == 20
    assert read.count(index_path(base_offsets[0], ".log")) <= 3


def test_a_hole_between_segments_ends_the_log() -> None:
    disk, base_offsets = closed_log()
    disk.unlink(index_path(base_offsets[2], ".log"))
    log = open_log(disk)
    assert (log.log_end_offset, log.segment_base_offsets) == (base_offsets[2], base_offsets[:2])
    assert disk.listdir(DIRECTORY) == [
        *(
            f"{offset:020d}{suffix}"
            for offset in base_offsets[:2]
            for suffix in (".index", ".log", ".timeindex")
        ),
        "leader-epoch-checkpoint",
    ]


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


def test_recovery_notes_the_epochs_of_batches_whose_checkpoint_was_lost() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for leader_epoch in (1, 4, 6):
        fill(log, VALUES[:4], leader_epoch=leader_epoch)
    log.flush()
    log.close(clean=False)
    disk.unlink(f"{DIRECTORY}/leader-epoch-checkpoint")
    assert open_log(disk).epochs.entries == ((1, 0), (4, 4), (6, 8))


@pytest.mark.parametrize("clean", [True, False])
def test_epochs_are_rebuilt_below_the_recovery_point_too(clean: bool) -> None:
    disk = SimDisk()
    log = open_log(disk)
    for leader_epoch in (1, 4, 6):
        fill(log, VALUES[:4], leader_epoch=leader_epoch)
    log.flush()
    log.close(clean=clean)
    disk.unlink(f"{DIRECTORY}/leader-epoch-checkpoint")
    log = open_log(disk, clean=clean, recovery_point=12)
    assert log.epochs.entries == ((1, 0), (4, 4), (6, 8))


def test_epochs_beyond_the_recovered_end_are_dropped() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    fill(log, ["a"], leader_epoch=1)
    log.flush()
    fill(log, ["b"], leader_epoch=2)
    disk.kill()
    disk.open(index_path(0, ".log")).truncate(len(batch("a")) + 5)
    log = open_log(disk, LogSettings())
    assert (log.log_end_offset, log.epochs.entries) == (1, ((1, 0),))


def test_a_log_that_lost_what_was_deleted_goes_on_where_it_was_to_start() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, VALUES)
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
    file = disk.open(index_path(0, ".log"), create=True)
    file.append([batch("new", leader_epoch=5), batch("old", base_offset=1, leader_epoch=3)])
    assert open_log(disk).log_end_offset == 1


def test_a_hole_left_by_recovery_never_shows_where_gaps_are_allowed() -> None:
    settings = LogSettings(segment_bytes=400, index_interval_bytes=0, cleanup_policy="compact")
    number, is_over = 0, False
    while not is_over:
        number += 1
        disk = SimDisk()
        log = open_log(disk, settings)
        fill(log, VALUES)
        base_offsets = log.segment_base_offsets
        log.close()
        content = bytearray(read_file(disk, index_path(base_offsets[1], ".log")))
        content[-1] ^= 1
        write_file_durably(disk, index_path(base_offsets[1], ".log"), bytes(content))
        left = number

        def lose_power(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        disk.on_operation = lose_power
        try:
            open_log(disk, settings)
            is_over = True
        except KeyboardInterrupt:
            disk.on_operation = None
            disk.crash(Random(number))
        disk.on_operation = None
        disk.kill()
        assert read_all(open_log(disk, settings)) == stamped(VALUES[: base_offsets[2] - 1])


def test_what_was_cut_stays_cut_after_power_loss_where_gaps_are_allowed() -> None:
    settings = LogSettings(segment_bytes=400, cleanup_policy="compact")
    for seed in range(20):
        disk = SimDisk()
        log = open_log(disk, settings)
        fill(log, VALUES)
        log.flush()
        end = log.segment_base_offsets[2] - 1
        log.truncate_to(end)
        disk.crash(Random(seed))
        assert read_all(open_log(disk, settings)) == stamped(VALUES[:end])


def test_a_log_that_started_anew_is_there_after_power_loss() -> None:
    for seed in range(20):
        disk = SimDisk()
        log = open_log(disk)
        fill(log, VALUES)
        log.truncate_fully_and_start_at(1000)
        fill(log, ["a"], leader_epoch=1)
        log.flush()
        disk.crash(Random(seed))
        log = open_log(disk)
        assert read_all(log) == batch("a", base_offset=1000, leader_epoch=1)
        assert log.epochs.entries == ((1, 1000),)


def test_what_recovery_has_found_is_durable() -> None:
    for seed in range(20):
        disk = SimDisk()
        log = open_log(disk)
        fill(log, VALUES)
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
            write_file_durably(disk, index_path(0, ".log"), good + far)
            assert read_all(open_log(disk, settings, clean=clean)) == good


def fail_on(operation: str, suffix: str, code: int) -> object:
    def on_operation(name: str, path: str) -> None:
        if name == operation and path.endswith(suffix):
            raise OSError(code, "planted")

    return on_operation


def test_kafka_10533_a_failed_fsync_is_final_and_claims_nothing() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, ["a"])
    log.flush()
    fill(log, ["b"])
    disk.on_operation = fail_on("fsync", ".log", errno.EIO)  # type: ignore[assignment]  # a fake
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
    disk.on_operation = fail_on("truncate", ".log", errno.EIO)  # type: ignore[assignment]  # a fake
    with pytest.raises(StorageError, match="undo"):
        log.append_as_follower(batch("a", "b", "c", "d", "e" * 100))
    assert log.failure is not None
    disk.on_operation = None
    disk.kill()
    assert open_log(disk).log_end_offset == 0


def test_kafka_7866_an_append_that_met_an_io_error_fails_the_log() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, ["a"])
    disk.on_operation = fail_on("append", ".log", errno.EIO)  # type: ignore[assignment]  # a fake
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
    disk.on_operation = fail_on("open", ".log", errno.EMFILE)  # type: ignore[assignment]  # a fake
    with pytest.raises(StorageError, match="start a segment"):
        fill(log, ["b"])
    disk.on_operation = None
    fill(log, ["b"])
    assert read_all(log) == stamped(["a", "b"])


def test_a_segment_that_was_started_in_part_fails_the_log() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings(segment_bytes=200))
    fill(log, ["a"])
    disk.on_operation = fail_on("truncate", ".log", errno.EIO)  # type: ignore[assignment]  # a fake
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
    disk.on_operation = fail_on(operation, suffix, errno.ENOSPC)  # type: ignore[assignment]  # a fake
    with pytest.raises(StorageError, match="leader-epoch-checkpoint"):
        log.flush()
    assert log.flushed_offset == 0
    disk.on_operation = None
    assert log.flush() == 1
    disk.crash(Random(0))
    assert open_log(disk, LogSettings(), recovery_point=1).epochs.entries == ((1, 0),)


@pytest.mark.parametrize("cut", [lambda log: log.truncate_to(1), lambda log: log.truncate_to(0)])
def test_a_crash_after_a_truncation_brings_back_no_epoch_that_was_cut(
    cut: Callable[[Log], None],
) -> None:
    """The file still names them: it is written with the next flush."""
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    for leader_epoch in range(3):
        fill(log, ["a"], leader_epoch=leader_epoch)
    log.flush()
    cut(log)
    fill(log, ["b"], leader_epoch=2)
    disk.kill()
    log = open_log(disk, LogSettings())
    assert log.epochs.end_offset_for(1, 9).end_offset == log.log_end_offset - 1


def test_settings_that_the_formats_cannot_hold_are_refused() -> None:
    for bad in (
        {"segment_bytes": 1 << 31},
        {"segment_bytes": 0},
        {"segment_ms": 0},
        {"segment_index_bytes": 1},
        {"index_interval_bytes": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(bad)).replace("_", ".")):
            LogSettings(**bad)  # type: ignore[arg-type]  # that is the point
    assert TINY.may_have_gaps is False

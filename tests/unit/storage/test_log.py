"""The promises of a log to the partition above it."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.invariants import InvariantViolation
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import OffsetOutOfRange, StorageError, UnexpectedOffset
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Epoch
from tests.support.storage.batches import (
    COMPACTED,
    DIRECTORY,
    VALUES,
    batch,
    file_of,
    fill,
    log_of,
    open_log,
    read_all,
    stamped,
    timed_batch,
)
from tests.support.storage.crashes import fail_on


def test_a_leader_gives_offsets_and_its_epoch_and_leaves_the_given_buffer_alone() -> None:
    log = log_of(["z"], leader_epoch=0)
    given = batch("a", "b", timestamp_ms=2000)
    view = memoryview(given)
    append = log.append_as_leader(view, leader_epoch=7, wall_ms=0)
    assert (append.first_offset, append.last_offset) == (1, 2)
    assert (append.max_timestamp, append.size) == (2000, len(given))
    assert given == batch("a", "b", timestamp_ms=2000)
    assert read_all(log)[-len(given) :] == batch(
        "a", "b", base_offset=1, leader_epoch=7, timestamp_ms=2000
    )
    assert log.epochs.entries == ((0, 0), (7, 1))


@pytest.mark.parametrize(
    "records", [b"", batch("a")[:-1], batch("a") + b"\0", batch("a")[:60], batch("a") + batch("b")]
)
def test_a_leader_appends_one_whole_batch(records: bytes) -> None:
    log = open_log()
    with pytest.raises(CorruptBatch):
        log.append_as_leader(records, leader_epoch=0, wall_ms=0)
    assert (log.log_end_offset, log.size) == (0, 0)


def test_a_follower_copies_the_bytes_of_its_leader_and_notes_every_epoch_where_it_starts() -> None:
    leader, follower = log_of(VALUES[:3], leader_epoch=2), open_log()
    fill(leader, VALUES, leader_epoch=5)
    info = follower.append_as_follower(read_all(leader))
    assert (info.first_offset, info.last_offset) == (0, len(VALUES) + 2)
    assert read_all(follower) == read_all(leader)
    assert follower.epochs.entries == leader.epochs.entries == ((2, 0), (5, 3))


def test_kafka_6361_no_batch_of_an_older_epoch_follows_one_of_a_newer() -> None:
    log = log_of(["a"], leader_epoch=4)
    log.epochs.assign(6, 1)  # elected, and wrote nothing
    older = batch("b", base_offset=1, leader_epoch=5)
    with pytest.raises(UnexpectedOffset):
        log.append_as_follower(older)
    with pytest.raises(InvariantViolation):
        fill(log, ["b"], leader_epoch=5)
    log.truncate_to(1)
    log.append_as_follower(older)
    assert log.epochs.entries == ((4, 0), (5, 1))


@pytest.mark.parametrize("base_offset", [0, 2])
def test_a_follower_refuses_what_does_not_continue_its_log(base_offset: int) -> None:
    log = log_of(["a"])
    before = read_all(log)
    with pytest.raises(UnexpectedOffset):
        log.append_as_follower(batch("b", base_offset=base_offset, leader_epoch=1))
    assert (read_all(log), log.epochs.latest_epoch) == (before, 0)


def test_a_compacted_log_may_have_gaps_from_the_moment_that_it_is_compacted() -> None:
    log = open_log()
    first, second = (batch("a", base_offset=at, leader_epoch=0) for at in (5, 9))
    with pytest.raises(UnexpectedOffset):
        log.append_as_follower(first)
    log.settings = COMPACTED
    log.append_as_follower(first)
    log.append_as_follower(second)
    assert log.log_end_offset == 10
    assert log.read(6, max_bytes=1, end_offset=10) == (second, 10)


def test_a_partial_batch_at_the_end_of_a_fetch_is_left_out() -> None:
    log = open_log()
    first, second = (batch(value, base_offset=index) for index, value in enumerate("ab"))
    assert log.append_as_follower(first + second[:-1]).last_offset == 0
    assert log.append_as_follower(second[:-1]).size == 0
    assert log.log_end_offset == 1


def test_kafka_18723_a_follower_takes_no_corrupt_batch_and_none_of_a_newer_epoch() -> None:
    log = open_log()
    good = batch("a", leader_epoch=4)
    newer = batch("b", base_offset=1, leader_epoch=5)
    corrupt = bytearray(batch("b", base_offset=1, leader_epoch=4))
    corrupt[-1] ^= 1
    with pytest.raises(CorruptBatch):
        log.append_as_follower(good + corrupt)
    assert log.log_end_offset == 0
    assert log.append_as_follower(good + newer, leader_epoch=4).last_offset == 0
    assert (log.log_end_offset, log.epochs.latest_epoch) == (1, 4)


def test_reads_return_whole_batches_within_max_bytes_and_go_on_where_they_stopped() -> None:
    log = log_of()
    size = len(batch(VALUES[0]))
    assert log.read(0, max_bytes=2 * size + 1, end_offset=20) == (stamped(VALUES[:2]), 2)
    assert log.read(0, max_bytes=1, end_offset=20).next_offset == 1
    assert log.read(0, max_bytes=1, end_offset=20, at_least_one=False) == (b"", 0)
    for max_bytes in (1, size, 3 * size + 7, 1 << 20):
        assert read_all(log, max_bytes=max_bytes) == stamped(VALUES)


def test_a_read_starts_with_the_batch_that_holds_the_offset() -> None:
    log = open_log()
    log.append_as_leader(batch("a", "b", "c"), leader_epoch=0, wall_ms=0)
    assert log.read(2, max_bytes=1000, end_offset=3).records == batch("a", "b", "c", leader_epoch=0)


def test_kafka_9807_no_read_returns_a_record_at_or_above_its_end_offset() -> None:
    log = open_log()
    for index in range(30):
        log.append_as_leader(batch(*"xyz"[: index % 3 + 1]), leader_epoch=0, wall_ms=0)
    for offset in range(log.log_end_offset):
        for end_offset in range(log.log_end_offset + 3):
            for max_bytes in (1, 1000):  # 1: the first batch is too large, and read all the same
                result = log.read(offset, max_bytes=max_bytes, end_offset=end_offset)
                assert result.next_offset <= max(offset, end_offset)
                assert bool(result.records) == (result.next_offset > offset)


def test_reads_outside_the_log_are_refused() -> None:
    log = log_of()
    log.advance_log_start_offset(3)
    for offset in (2, 21):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, max_bytes=1, end_offset=20)
    assert log.read(20, max_bytes=1, end_offset=20) == (b"", 20)


@pytest.mark.parametrize(
    ("settings", "segments"),
    [
        (LogSettings(), 1),
        (LogSettings(segment_bytes=1), 20),
        (LogSettings(segment_bytes=len(batch(VALUES[0])) * 4), 5),
        (LogSettings(segment_index_bytes=16, index_interval_bytes=0), 10),
        (LogSettings(segment_ms=9), 2),
    ],
)
def test_a_segment_is_rolled_by_size_by_a_full_index_and_by_age(
    settings: LogSettings, segments: int
) -> None:
    log = open_log(settings=settings)
    values = [f"value-{index:02}" for index in range(20)]
    for index, value in enumerate(values):
        log.append_as_leader(batch(value, timestamp_ms=1000 + index), leader_epoch=0, wall_ms=0)
    count = len(log.segment_base_offsets)
    assert count == segments or (settings.segment_bytes > 1 and 5 <= count <= 7)
    assert len(read_all(log)) == log.size


def ages(log: Log, *, until_ms: int = 3000) -> list[int]:
    """Append a batch for each millisecond; return the ages at which segments have ended."""
    begun_ms = [0]
    for time_ms in range(until_ms):
        count = len(log.segment_base_offsets)
        log.append_as_leader(batch("x", timestamp_ms=time_ms), leader_epoch=0, wall_ms=0)
        if len(log.segment_base_offsets) > count:
            begun_ms.append(time_ms)
    return [later - before - 1 for before, later in pairwise(begun_ms[1:])]


def test_segments_end_by_a_jitter_of_their_own_before_their_time() -> None:
    settings = LogSettings(segment_ms=100, segment_jitter_ms=50)
    found = ages(open_log(settings=settings))
    assert len(found) > 20
    assert 50 < min(found) < 65
    assert 85 < max(found) <= 100
    assert found == ages(open_log(settings=settings))  # a restart draws no others
    assert found != ages(open_log(settings=settings, directory="/data/topic-1"))
    assert {*ages(open_log(settings=LogSettings(segment_ms=100)))} == {100}
    wide = LogSettings(segment_ms=100, segment_jitter_ms=10**12)
    assert all(0 < age <= 100 for age in ages(open_log(settings=wide)))


def test_a_segment_is_rolled_when_an_offset_would_not_fit_in_its_index() -> None:
    log = open_log(settings=LogSettings(cleanup_policy="compact"))
    log.append_as_follower(batch("a", leader_epoch=0))
    log.append_as_follower(batch("b", base_offset=2**31 - 1, leader_epoch=0))
    log.append_as_follower(batch("c", base_offset=2**31, leader_epoch=0))
    assert log.segment_base_offsets == (0, 2**31)


def test_truncation_cuts_whole_batches_and_the_log_goes_on_from_there() -> None:
    for offset, end in ((11, 10), (10, 10), (4, 4), (1, 0), (0, 0), (12, 12), (40, 12)):
        log = open_log()
        for index in range(6):
            log.append_as_leader(batch(f"a{index}", "b"), leader_epoch=index, wall_ms=0)
        log.truncate_to(offset)
        assert log.log_end_offset == end
        assert [start for _, start in log.epochs.entries] == list(range(0, end, 2))
        log.append_as_leader(batch("new"), leader_epoch=9, wall_ms=0)
        assert log.epochs.entries[-1] == (9, end)
        assert read_all(log).endswith(batch("new", base_offset=end, leader_epoch=9))


def test_kafka_10706_epochs_are_cut_even_if_the_log_ends_there_already() -> None:
    log = log_of(VALUES[:3], leader_epoch=1)
    log.epochs.assign(4, 3)  # elected, and deposed before it wrote anything
    log.truncate_to(3)
    assert (log.log_end_offset, log.epochs.entries) == (3, ((1, 0),))


def test_truncation_below_the_first_segment_starts_the_log_anew() -> None:
    log = open_log()
    log.truncate_fully_and_start_at(100)
    fill(log, VALUES)
    log.truncate_to(50)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries) == (50, 50, ())


def test_a_log_that_starts_anew_forgets_its_records_and_epochs() -> None:
    disk = SimDisk()
    log = log_of(disk=disk)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (1000, 1000, 1000)
    assert (log.epochs.latest_epoch, read_all(log)) == (-1, b"")
    fill(log, ["a"], leader_epoch=8)
    log.close()
    log = open_log(disk, clean=True)
    assert read_all(log) == batch("a", base_offset=1000, leader_epoch=8)


def test_the_start_moves_up_and_full_segments_below_it_go() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for leader_epoch in range(20):
        fill(log, ["value"], leader_epoch=leader_epoch)
    third = log.segment_base_offsets[2]
    log.advance_log_start_offset(third + 1)
    log.advance_log_start_offset(0)
    assert (log.log_start_offset, log.segment_base_offsets[0]) == (third + 1, third)
    assert log.epochs.entries[0] == (0, 0)
    log.epochs.truncate_from_start(third + 1)
    assert log.epochs.entries[0] == (third + 1, third + 1)
    assert f"{0:020d}.log" in disk.listdir(DIRECTORY)  # nothing has waited for the disk
    log.remove_dead_segments()
    assert [name for name in disk.listdir(DIRECTORY) if name < f"{third:020d}"] == []
    log.advance_log_start_offset(20)
    assert (log.log_start_offset, len(log.segment_base_offsets)) == (20, 1)
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start_offset(21)


def test_segments_that_another_thread_removes_meanwhile_have_no_size() -> None:
    disk = SimDisk()
    log = log_of(disk=disk)
    whole, middle = log.size, file_of(log.segment_base_offsets[2])
    log.flush()
    log.close()
    lost = disk.size(middle)
    disk.unlink(middle)
    assert log.size == whole - lost


def test_a_log_closed_cleanly_is_as_it_was_without_being_checked() -> None:
    disk, reads = SimDisk(), list[str]()
    log = open_log(disk)
    fill(log, VALUES, leader_epoch=2)
    log.close()
    disk.on_operation = lambda operation, path: reads.append(path) if operation == "pread" else None
    log = open_log(disk, clean=True)
    assert {path.rpartition(".")[0] for path in reads if path.endswith("log")} == {
        f"{DIRECTORY}/{log.segment_base_offsets[-1]:020d}"
    }
    assert read_all(log) == stamped(VALUES, leader_epoch=2)
    assert (log.flushed_offset, log.epochs.latest_epoch) == (20, 2)
    fill(log, ["more"], leader_epoch=2)
    assert read_all(log) == stamped([*VALUES, "more"], leader_epoch=2)


def test_timestamps_lead_to_the_first_record_that_has_them_or_more() -> None:
    log = open_log()
    for times in ((10, 12), (11,), (30, 20), (5,), (30, 31), (40,)):
        log.append_as_leader(timed_batch(*times), leader_epoch=0, wall_ms=0)
    expected = {0: (0, 10), 11: (1, 12), 12: (1, 12), 13: (3, 30), 31: (7, 31), 32: (8, 40)}
    for timestamp, found in expected.items():
        assert log.time_lookup().first_since(timestamp) == found
    assert log.time_lookup().first_since(41) is None
    assert log.time_lookup().of_max_timestamp() == (8, 40)
    log.truncate_to(8)
    assert log.time_lookup().of_max_timestamp() == (7, 31)
    log.advance_log_start_offset(2)
    assert log.time_lookup().first_since(0) == (2, 11)
    assert open_log().time_lookup().of_max_timestamp() is None


def test_headers_are_listed_across_segments() -> None:
    log = log_of()
    assert [header.base_offset for header in log.headers(7)] == list(range(7, 20))


def test_few_full_segments_stay_open_and_headers_go_on_when_theirs_is_closed(
    tmp_path: Path,
) -> None:
    log = open_log(RealDisk(), LogSettings(segment_bytes=1), directory=f"{tmp_path}/topic-0")
    fill(log, VALUES)
    log.flush()
    headers = log.headers(0)
    assert next(headers).base_offset == 0
    for _ in range(2):
        assert read_all(log) == stamped(VALUES)
    opened = [segment.is_loaded for segment in log._segments]
    assert sum(opened[:10]) == 0
    assert [header.base_offset for header in headers] == [*range(1, 20)]
    log.truncate_to(3)
    fill(log, VALUES[3:])
    assert read_all(log) == stamped(VALUES)
    log.close()


def test_flush_in_a_thread_claims_no_record_that_came_after_it_began() -> None:
    began, appended = threading.Event(), threading.Event()

    def wait_in_fsync(operation: str, path: str) -> None:
        if operation == "fsync" and path.endswith(".log"):
            began.set()
            appended.wait(10)

    disk = SimDisk()
    log = log_of(VALUES[:2], disk=disk)
    disk.on_operation = wait_in_fsync
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(log.flush)
        began.wait(10)
        fill(log, VALUES[2:])  # it rolls segments meanwhile
        assert read_all(log) == stamped(VALUES)
        appended.set()
        assert flushed.result(10) == 2
    assert (log.flushed_offset, log.log_end_offset) == (2, 20)
    assert log.flush() == 20


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_read_that_fails_does_not_fail_the_log(number: int) -> None:
    disk = SimDisk()
    log_of(disk=disk).close()
    log = open_log(disk, clean=True)
    disk.on_operation = fail_on("open", code=number)
    with pytest.raises(StorageError, match="cannot read"):
        log.read(0, max_bytes=1, end_offset=20)
    disk.on_operation = None
    assert read_all(log) == stamped(VALUES)


def test_nothing_works_after_close() -> None:
    log = open_log()
    log.close()
    log.close()
    with pytest.raises(StorageError, match="closed"):
        fill(log, ["a"])
    with pytest.raises(StorageError, match="closed"):
        log.read(0, max_bytes=1, end_offset=0)


def test_an_epoch_may_be_assigned_before_anything_is_written_in_it() -> None:
    log = open_log()
    log.epochs.assign(3, log.log_end_offset)
    fill(log, ["a"], leader_epoch=3)
    assert log.epochs.end_offset_for(Epoch(3), log.log_end_offset) == (3, 1)


# --- settings that are replaced while the log is open ---


def test_other_settings_count_from_the_next_append_on_and_for_the_index_of_new_segments() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    fill(log, VALUES)
    log.settings = LogSettings(segment_bytes=1, index_interval_bytes=0)
    fill(log, ["x", "y"])
    log.settings = LogSettings(index_interval_bytes=0)
    fill(log, VALUES)
    assert log.segment_base_offsets == (0, 20, 21)
    log.flush()
    sizes = [disk.size(file_of(offset, ".index")) for offset in (0, 20)]
    assert sizes == [0, 0]  # 4096 bytes for an entry; one batch
    log.close()
    assert disk.size(file_of(21, ".index")) > 0


# --- how often a log waits for the disk: each time may take as long as a heartbeat ---


@pytest.fixture
def counted() -> tuple[SimDisk, list[str]]:
    """A disk, and the names of its operations with their paths."""
    operations: list[str] = []
    disk = SimDisk(on_operation=lambda operation, path: operations.append(f"{operation} {path}"))
    return disk, operations


Counted = tuple[SimDisk, list[str]]


def test_a_clean_close_costs_four_fsyncs_and_none_if_nothing_was_appended(counted: Counted) -> None:
    disk, operations = counted
    log = open_log(disk)
    fill(log, ["a"], leader_epoch=1)
    log.epochs.assign(2, 1)
    fill(log, ["b"], leader_epoch=2)
    assert not [one for one in operations if "fsync" in one]  # the first record of an epoch
    log.flush()  # writes the epoch, too
    fill(log, ["c"], leader_epoch=2)
    operations.clear()
    log.close()
    kinds = [one.split()[0] for one in operations if "fsync" in one]
    assert kinds == ["fsync", "fsync", "fsync", "fsync_dir"]
    log = open_log(disk, clean=True)
    operations.clear()
    log.close()
    assert not [one for one in operations if "fsync" in one]


def test_a_second_lookup_by_time_loads_one_segment(counted: Counted) -> None:
    """The first one learns the largest timestamp of every segment that it passes."""
    disk, opened = counted
    log = open_log(disk)
    for time_ms in range(500):
        log.append_as_leader(timed_batch(time_ms), leader_epoch=0, wall_ms=0)
    log.close()
    log = open_log(disk, clean=True)
    assert len(log.segment_base_offsets) >= 100
    assert log.time_lookup().first_since(460) == (460, 460)
    for time_ms in (20, 300):
        opened.clear()
        assert log.time_lookup().first_since(time_ms) == (time_ms, time_ms)
        assert [one for one in opened if one.startswith("open") and "index" in one] == [
            f"open /data/topic-0/{time_ms:020d}{suffix}" for suffix in (".index", ".timeindex")
        ]

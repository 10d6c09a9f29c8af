"""Segments at their borders, damaged ones, epochs that do not fit, and logs without room."""

import errno
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.batch_scan import BrokenSegment
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.storage.io.epoch_checkpoint import decode_epochs
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.segment import Segment
from quorumlog.wire.codec.records import read_header
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
from tests.support.storage.crashes import fail_on
from tests.support.storage.refusing import Refusing


def test_a_compacted_log_ends_where_a_loss_of_power_has_taken_whole_batches() -> None:
    disk = SimDisk()
    log = open_log(disk, COMPACTED)
    fill(log, VALUES)
    _, second, third, *_ = log.segment_base_offsets
    log.close()
    path = file_of(second)
    whole = read_file(disk, path)
    last = len(stamped(VALUES[third - 1 : third]))
    write_file_durably(disk, path, whole[:-last])
    again = open_log(disk, COMPACTED, recovery_point=second)
    assert read_all(again) == stamped(VALUES[: third - 1])
    assert again.segment_base_offsets[-1] == second


def test_a_segment_begins_where_the_log_ends_even_if_its_first_batch_comes_later() -> None:
    disk = SimDisk()
    log = open_log(disk, COMPACTED)
    sent = [batch("x" * 150, base_offset=offset, leader_epoch=0) for offset in (0, 5, 9, 20)]
    for one in sent:
        log.append_as_follower(one)
    assert log.segment_base_offsets == (0, 1, 6, 10)
    log.close(clean=False)
    assert read_all(open_log(disk, COMPACTED)) == b"".join(sent)


def test_a_segment_that_begins_again_after_a_cut_keeps_its_name() -> None:
    disk = SimDisk()
    log = log_of(disk=disk)
    log.flush()
    border = log.segment_base_offsets[-1]
    log.truncate_to(border)
    fill(log, ["new"])
    assert log.flush() == border + 1
    disk.crash(Random(0))
    assert open_log(disk).log_end_offset == border + 1


def test_a_full_segment_is_as_new_as_its_records_after_it_was_cut() -> None:
    log = log_of()
    log.flush()
    first, second, *_ = log.segment_base_offsets
    log.truncate_to(second - 1)
    log.append_as_leader(batch("late", timestamp_ms=5000), leader_epoch=0, wall_ms=0)
    log.flush()
    log.roll(second)
    read_all(log)
    assert log.time_lookup().first_since(4000) == (second - 1, 5000)
    assert log.survey.facts()[0] == (first, log.size, 5000)


def test_a_segment_below_the_start_dies_when_it_is_full() -> None:
    log = open_log()
    fill(log, VALUES[:1])
    log.advance_log_start_offset(1)
    assert not log.has_dead_segments
    log.roll(1)
    log.advance_log_start_offset(1)
    assert log.has_dead_segments


# --- a full segment that was damaged: reads are right or fail, and never skip records ---


Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "empty": lambda _: b"",
    "zeros": lambda content: bytes(len(content)),
    "half": lambda content: content[: len(content) // 2],
    "one batch less": lambda content: content[: len(content) // 4],
    "foreign": lambda content: b"\x7fELF" + content[::-1],
    "a length is wrong": lambda content: content[:8] + b"\xff\xff" + content[10:],
}


def rewrite(disk: SimDisk, base_offset: int, damage: Damage) -> None:
    write_file_durably(disk, file_of(base_offset), damage(read_file(disk, file_of(base_offset))))


def closed_log(disk: SimDisk) -> tuple[int, ...]:
    """Return where the segments start."""
    log = log_of(disk=disk)
    bases = log.segment_base_offsets
    log.close()
    assert len(bases) > 3
    return bases


def read_on(log: Log, offset: int) -> int:
    """Read once; return the offset of the first record."""
    records = log.read(offset, max_bytes=1, end_offset=log.log_end_offset).records
    return read_header(bytes(records)).base_offset


@pytest.mark.parametrize("name", DAMAGES)
def test_a_read_is_right_or_it_fails(name: str) -> None:
    disk = SimDisk()
    first, second, *_ = closed_log(disk)
    rewrite(disk, first, DAMAGES[name])
    log = open_log(disk, clean=True)
    failed = set[int]()
    for offset in range(len(VALUES)):
        try:
            found = read_on(log, offset)
        except StorageError:
            failed.add(offset)
        else:
            assert found == offset
    assert failed
    assert failed <= {*range(second)}
    log.close()


def test_a_damaged_segment_is_searched_once(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    first, *_ = closed_log(disk)
    rewrite(disk, first, DAMAGES["zeros"])
    log = open_log(disk, clean=True)
    for _ in range(5):
        with pytest.raises(BrokenSegment):
            log.read(0, max_bytes=1, end_offset=log.log_end_offset)
    assert ["is damaged" in record.message for record in caplog.records] == [False, True]
    log.close()


def test_only_a_compacted_log_may_have_gaps() -> None:
    disk = SimDisk()
    _, second, *_ = closed_log(disk)
    disk.unlink(file_of(second))
    log = open_log(disk, clean=True)
    with pytest.raises(BrokenSegment, match="is the first with records from"):
        log.read(second, max_bytes=1, end_offset=log.log_end_offset)
    log.close()


def test_rubbish_behind_the_last_batch_of_a_full_segment_costs_no_record() -> None:
    disk = SimDisk()
    _, second, *_ = closed_log(disk)
    path = file_of(second)
    size = disk.size(path)
    rewrite(disk, second, lambda content: content + bytes(100))
    log = open_log(disk)
    assert read_all(log) == stamped(VALUES)
    assert disk.size(path) == size
    log.close()


# --- a file of leader epochs that does not fit the log that is opened ---


PATH = f"{DIRECTORY}/leader-epoch-checkpoint"


def write_epochs(disk: SimDisk, epochs: str) -> None:
    """Write the file of leader epochs without a checksum."""
    content = f"0\n{len(epochs.splitlines())}\n{epochs}\n"
    write_file_durably(disk, PATH, content.encode())


def log_of_three_epochs(settings: LogSettings) -> SimDisk:
    disk = SimDisk()
    log = open_log(disk, settings)
    for leader_epoch in (1, 4, 6):
        fill(log, "abcd", leader_epoch=leader_epoch)
    log.flush()
    log.close(clean=True)
    return disk


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        *((TINY, epochs) for epochs in ("1 0", "1 0\n4 4", "1 0\n4 4\n7 8")),
        (LogSettings(), "1 0"),
        (LogSettings(), "1 0\n6 8"),
        (LogSettings(), "2 0\n4 4\n6 8"),
        (LogSettings(), "1 0\n4 4\n7 8"),
        (LogSettings(), "1 0\n4 4\n6 9"),
        (LogSettings(), "1 0\n4 4\n6 7"),
        (LogSettings(), "1 0\n2 2\n4 4\n6 8"),
        (LogSettings(), "1 0\n4 4\n6 8\n7 10"),
    ],
)
def test_epochs_that_contradict_the_last_segment_are_rebuilt_from_the_log(
    settings: LogSettings, epochs: str
) -> None:
    """One flipped bit in a file without a checksum: a replica then judged all others wrongly."""
    disk = log_of_three_epochs(settings)
    write_epochs(disk, epochs)
    log = open_log(disk, settings, clean=True)
    assert log.epochs.entries == ((1, 0), (4, 4), (6, 8))
    log.close(clean=True)
    assert decode_epochs(read_file(disk, PATH)).entries == ((1, 0), (4, 4), (6, 8))


@pytest.mark.parametrize("epochs", ["2 0", "1 0\n6 8", "1 0\n4 4\n6 9", "1 0\n4 4\n5 8"])
def test_after_a_kill_the_segment_below_the_recovery_point_shows_it(epochs: str) -> None:
    disk = log_of_three_epochs(TINY)
    write_epochs(disk, epochs)
    log = open_log(disk, recovery_point=12)
    assert log.epochs.entries == ((1, 0), (4, 4), (6, 8))


@pytest.mark.parametrize("settings", [TINY, LogSettings()], ids=["segments", "one segment"])
@pytest.mark.parametrize("start", [0, 3, 5, 11])
def test_a_log_that_fits_its_epochs_is_not_read_when_it_is_opened(
    settings: LogSettings, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = log_of_three_epochs(settings)
    log = open_log(disk, settings, clean=True)
    log.advance_log_start_offset(start)
    log.epochs.truncate_from_start(start)
    entries = log.epochs.entries
    log.close(clean=True)
    write_epochs(disk, "\n".join(f"{epoch} {start}" for epoch, start in [*entries, (9, 12)]))
    monkeypatch.setattr(Segment, "headers", None)
    log = Log.open(disk, DIRECTORY, settings, clean=True, log_start_offset=start)
    assert log.epochs.entries == entries  # the last one was of a leader that appended nothing


# --- no room, or no file handle, for now: logs stay of use ---


def test_an_append_that_finds_no_room_leaves_no_epoch_behind() -> None:
    """The records that come in its place may be of an older epoch, if fewer are fetched."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, ["a"], leader_epoch=1)
    older = batch("b", base_offset=1, leader_epoch=1)
    newer = batch("c", base_offset=2, leader_epoch=2)
    disk.capacity_bytes = disk.bytes_used() + 10
    with pytest.raises(DiskExhausted):
        log.append_as_follower(older + newer)
    assert log.epochs.latest_epoch == 1
    disk.capacity_bytes = None
    log.append_as_follower(older)
    log.append_as_follower(newer)
    assert (log.log_end_offset, log.epochs.latest_epoch) == (3, 2)


def test_a_flush_that_finds_no_room_for_an_index_is_repeated() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings(segment_bytes=200))
    fill(log, ["a" * 100, "b" * 100, "c" * 100])
    disk.capacity_bytes = disk.bytes_used()
    log.epochs.write = lambda: None  # type: ignore[method-assign]  # it needs room, too
    with pytest.raises(DiskExhausted):
        log.flush()
    assert (log.failure, log.flushed_offset) == (None, 0)
    disk.capacity_bytes = None
    assert log.flush() == 3
    assert log.flushed_offset == 3


@pytest.mark.parametrize("operation", ["append", "fsync"])
def test_a_log_survives_that_there_is_no_file_handle_for_now(operation: str) -> None:
    disk = SimDisk()
    log = log_of(["a"], disk=disk)
    act = partial(fill, log, ["b"]) if operation == "append" else log.flush
    disk.on_operation = fail_on(operation, ".log", errno.EMFILE)
    with pytest.raises(DiskExhausted):
        act()
    disk.on_operation = None
    assert log.failure is None
    fill(log, ["c"])
    assert log.flush() == log.log_end_offset


def test_a_log_is_closed_cleanly_where_there_is_no_room_for_its_index() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings(index_interval_bytes=1))
    fill(log, ["a", "b", "c"])
    log.flush()
    disk.capacity_bytes = disk.bytes_used()
    log.close()
    disk.capacity_bytes = None
    again = Log.open(disk, log.directory, LogSettings(), clean=True, known_end_offset=3)
    assert [header.base_offset for header in again.headers(0)] == [0, 1, 2]


def test_a_log_that_finds_no_room_is_opened_again() -> None:
    """It has several segments, a torn end, and lacks records that were deleted."""
    settings = LogSettings(segment_bytes=200)
    for first in count():
        disk = SimDisk()
        log = log_of(["a" * 100, "b" * 100, "c" * 100], settings, disk=disk)
        disk.open(file_of(2)).append([b"torn"])
        disk.kill()
        refusing = Refusing(disk, first, 1)
        opened = partial(Log.open, disk, DIRECTORY, settings, clean=False, log_start_offset=5)
        try:
            log = opened()
        except DiskExhausted:
            log = opened()
        assert (log.log_start_offset, log.log_end_offset, log.failure) == (5, 5, None)
        assert log.segment_base_offsets == (5,)
        if not refusing.has_refused:
            break
    assert first > 4

"""A compacted log keeps the newest record of each key, at its offset, whatever crashes."""

from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.cleaning import NewestOffsets
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.cleaning import CleanedSegment
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.filtered_batches import DELETE_HORIZON_BIT
from quorumlog.wire.codec.records import Compression, Record, encode_batch, iterate_headers
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.storage.batches import open_log, read_all
from tests.support.storage.cleaning import (
    TINY,
    append,
    begin,
    clean,
    complete,
    found,
    log_of_writes,
    newest_values,
    records_of,
    rules,
)
from tests.support.storage.crashes import fail_on, lose_power_at
from tests.support.storage.power import kept


def test_the_newest_record_of_each_key_stays_at_its_offset() -> None:
    log = log_of_writes()
    before, records = newest_values(log), found(log)
    active = log.active_base_offset
    assert clean(log, rules()) == active
    after = found(log)
    assert newest_values(log) == before
    assert set(after) <= set(records)
    below = [key for offset, key, _ in after if offset < active]
    assert len(below) == len(set(below)) == 12
    segments = len(log.segment_base_offsets)
    clean(log, rules(first_dirty_offset=active))
    assert found(log) == after
    assert len(log.segment_base_offsets) < segments / 2  # small ones become one
    append(log, ("k0", "last"))
    assert newest_values(log)[b"k0"] == b"last"


def test_a_cleaned_log_has_no_holes_and_is_the_same_when_it_is_opened_again() -> None:
    disk = SimDisk()
    log = log_of_writes(disk)
    clean(log, rules())
    records, stored = found(log), read_all(log)
    ends = [(header.base_offset, header.next_offset) for _, header in iterate_headers(stored)]
    assert all(one[1] == other[0] for one, other in pairwise(ends))
    for offset in range(log.log_end_offset):
        first = log.read(offset, max_bytes=1, end_offset=log.log_end_offset).records
        header = next(iterate_headers(bytes(first)))[1]
        assert header.base_offset <= offset < header.next_offset
    log.close(clean=False)
    again = open_log(disk, LogSettings(segment_bytes=400, index_interval_bytes=0))  # of no gaps
    assert found(again) == records


@pytest.mark.parametrize("copied", range(60))
def test_a_follower_goes_on_from_any_batch_of_a_log_that_was_cleaned(copied: int) -> None:
    """Its log may end where the leader has one empty batch for what was before and after."""
    leader, follower = log_of_writes(), open_log(SimDisk(), TINY)
    copy_from(leader, follower, end_offset=2 * copied)
    clean(leader, rules())
    clean(leader, rules(first_dirty_offset=80))
    copy_from(leader, follower, end_offset=leader.log_end_offset)
    kept = [one for one in found(leader) if one[0] >= 2 * copied]
    assert [one for one in found(follower) if one[0] >= 2 * copied] == kept


def horizons(log: Log) -> dict[int, int]:
    """The batches with a delete horizon, by their base offsets."""
    headers = (header for _, header in iterate_headers(read_all(log)))
    return {
        one.base_offset: one.base_timestamp
        for one in headers
        if one.attributes & DELETE_HORIZON_BIT
    }


def append_filler(log: Log, key: str = "filler") -> None:
    for number in range(12):
        append(log, (key, f"later {number}"))


def copy_from(leader: Log, follower: Log, *, end_offset: int) -> None:
    while follower.log_end_offset < end_offset:
        read = leader.read(follower.log_end_offset, max_bytes=300, end_offset=end_offset)
        assert follower.append_as_follower(bytes(read.records)).size > 0


def test_nothing_from_the_end_offset_on_is_changed() -> None:
    log = log_of_writes()
    before = [one for one in found(log) if one[0] >= 50]
    end = clean(log, rules(50))
    assert end <= 50
    assert [one for one in found(log) if one[0] >= 50] == before


def test_keys_beyond_the_bound_of_memory_are_cleaned_the_next_time() -> None:
    log = log_of_writes()
    log.flush()
    before = newest_values(log)
    dirty, passes = 0, 0
    while dirty < log.active_base_offset:
        cleaning = begin(log, rules(first_dirty_offset=dirty))
        cleaning.newest.keys_max = 4
        assert complete(log, cleaning) > dirty
        dirty, passes = cleaning.newest.end_offset, passes + 1
        assert newest_values(log) == before
    assert passes > 1


TOMBSTONE = encode_batch([Record(0, 1000, b"a", None)])
MARKER = encode_marker(TransactionMarker(5, 0, 0, commits=True), 1000)  # of no records


@pytest.mark.parametrize("batch", [TOMBSTONE, MARKER], ids=["tombstone", "marker"])
def test_what_a_pass_had_no_room_to_learn_gets_no_horizon(batch: bytes) -> None:
    """What it deletes is there yet: a reader may need it for longer than from now on."""
    log = open_log(None, TINY)
    append(log, ("a", "old"))
    append(log, ("b", "x"))
    log.append_as_leader(batch, leader_epoch=0, wall_ms=0)
    append_filler(log)
    cleaning = begin(log, rules())
    cleaning.newest.keys_max = 2
    assert complete(log, cleaning) == 2
    assert horizons(log) == {}
    clean(log, rules(first_dirty_offset=2))
    assert [*horizons(log)] == [2]


def test_a_tombstone_stays_until_its_horizon() -> None:
    log = open_log(None, TINY)
    append(log, ("a", "old"), ("b", "stays"))
    append(log, ("a", None))
    append_filler(log)
    end = clean(log, rules(wall_ms=5000))
    assert (2, b"a", None) in found(log)
    assert (0, b"a", b"old") not in found(log)
    assert [*horizons(log).values()] == [6000]
    assert [one.timestamp_ms for one in records_of(log) if one.offset == 2] == [1000]
    clean(log, rules(wall_ms=5999, first_dirty_offset=end))
    assert (2, b"a", None) in found(log)
    clean(log, rules(wall_ms=6000, first_dirty_offset=end))
    assert b"a" not in newest_values(log)
    assert (1, b"b", b"stays") in found(log)


def test_the_last_batch_of_a_producer_stays_without_records() -> None:
    def last_sequences(log: Log) -> dict[int, int]:
        headers = [header for _, header in iterate_headers(read_all(log))]
        return {one.producer_id: one.last_sequence for one in headers if one.producer_id >= 0}

    log = open_log(None, TINY)
    for sequence in range(4):
        append(log, ("a", f"{sequence}"), producer=9, sequence=sequence)
    append_filler(log, "a")
    clean(log, rules())
    assert last_sequences(log) == {9: 3}
    assert (3, b"a", b"3") not in found(log)
    clean(log, rules(producers_since_ms=2000))
    assert last_sequences(log) == {}


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_keeps_its_compression_and_its_times(compression: Compression) -> None:
    log = open_log(None, TINY)
    append(log, ("a", "1"), ("b", "2"), ("a", "3"), (None, "no key"), compression=compression)
    append_filler(log)
    clean(log, rules())
    _, header = next(iterate_headers(read_all(log)))
    assert header.compression is compression
    assert (header.last_offset_delta, header.record_count) == (3, 2)
    first, second = records_of(log)[:2]
    assert (first.offset, first.timestamp_ms, first.value) == (1, 1001, b"2")
    assert (second.offset, second.timestamp_ms, second.value) == (2, 1002, b"3")


def test_a_log_that_was_cut_meanwhile_takes_nothing_over() -> None:
    log = log_of_writes()
    cleaned = next(one for one in begin(log, rules()).run() if one is not None)
    log.truncate_to(3)
    before = found(log)
    assert log.compaction.swap_in(cleaned, log.settings) is None
    assert found(log) == before


def test_no_segment_and_no_empty_batch_spans_more_offsets_than_the_format_can_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumlog.storage.io.cleaning.INT32_MAX", 8)
    log = log_of_small_segments(SimDisk())
    clean(log, rules())
    spans = [end - start for start, end in pairwise(log.segment_base_offsets)]
    deltas = [header.last_offset_delta for _, header in iterate_headers(read_all(log))]
    assert (max(spans), max(deltas)) == (8, 7)


def drafts(disk: SimDisk, log: Log) -> list[str]:
    return [name for name in disk.listdir(log.directory) if name.endswith(".cleaned")]


def test_a_pass_that_changes_nothing_leaves_no_draft() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings(segment_bytes=1, cleanup_policy="compact"))
    for number in range(6):
        append(log, (f"k{number}", "alone"))
    clean(log, rules())
    assert drafts(disk, log) == []


@pytest.mark.parametrize("steps", range(12))
def test_a_pass_that_is_given_up_leaves_no_draft(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr("quorumlog.storage.io.cleaning.SLICE_BYTES", 100)
    disk = SimDisk()
    log = log_of_writes(disk, count=6)
    before = found(log)
    cleaning = begin(log, rules())
    slices = cleaning.run()
    for _ in range(steps):
        if next(slices, None) is not None:
            break
    cleaning.remove_draft()
    assert drafts(disk, log) == []
    assert found(log) == before


def log_of_closed_segments(disk: SimDisk) -> tuple[Log, CleanedSegment]:
    """Return a log that knows its segments by their files alone, and one to swap in."""
    log_of_writes(disk).close()
    log = open_log(disk, TINY, clean=True)
    return log, next(one for one in begin(log, rules()).run() if one is not None)


@pytest.mark.parametrize("moment", range(5))
def test_a_survey_beside_a_swap_never_leaves_a_segment_out(moment: int) -> None:
    """Retention would take the first one that it names for the start of the log."""
    disk = SimDisk()
    log, cleaned = log_of_closed_segments(disk)
    left, surveyed = moment, []

    def survey(operation: str, _path: str) -> None:
        nonlocal left
        if operation == "rename":
            left -= 1
            if left < 0:
                disk.on_operation = None
                surveyed.append(log.survey.facts())

    disk.on_operation = survey
    assert log.compaction.swap_in(cleaned, log.settings)
    (facts,) = surveyed
    assert not facts or facts[0].base_offset == 0


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_survey_that_a_swap_overtakes_says_nothing(
    monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    disk = SimDisk()
    log, cleaned = log_of_closed_segments(disk)
    paths = []

    def size(path: str) -> int:
        paths.append(path)
        if len(paths) == asked:
            assert log.compaction.swap_in(cleaned, log.settings)
        return SimDisk.size(disk, path)

    monkeypatch.setattr(disk, "size", size)
    assert log.survey.facts() == []
    assert log.survey.facts()[0].base_offset == 0


def test_a_cleaner_that_drops_the_newest_value_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of_writes()
    before = newest_values(log)
    cleaning = begin(log, rules())
    monkeypatch.setattr(NewestOffsets, "is_replaced", lambda *_: True)
    complete(log, cleaning)
    assert newest_values(log) != before


# --- a crash at any step of a pass ---


def log_of_small_segments(disk: SimDisk) -> Log:
    """Return a log whose next pass swaps in one segment for several: a pass has shrunk these."""
    log = log_of_writes(disk, count=24)
    clean(log, rules())
    for number in range(16):
        append(log, (f"k{number % 7}", f"w{number}"), ("other0", "y"))
    return log


def test_a_pass_swaps_in_one_segment_for_several_that_an_earlier_pass_has_shrunk() -> None:
    cleaning = begin(log_of_small_segments(SimDisk()), rules())
    assert max(len(cleaned.replaces) for cleaned in cleaning.run() if cleaned) > 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("new_log", [partial(log_of_writes, count=16), log_of_small_segments])
def test_after_a_crash_at_any_step_the_log_has_every_newest_value(
    new_log: Callable[[SimDisk], Log], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    for step in count(seed, 3 if seed else 1):  # seed 0: at each step
        disk = SimDisk()
        log = new_log(disk)
        log.flush()
        before, end = newest_values(log), log.log_end_offset
        is_over = not lose_power_at(disk, step, partial(clean, log, rules()))
        disk.crash(kept(step, seed))
        caplog.clear()
        again = open_log(disk, TINY, recovery_point=end)
        assert (newest_values(again), again.log_end_offset) == (before, end)
        names = disk.listdir(again.directory)
        assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]
        again.close()
        if is_over:
            break
    assert step > 20
    assert not caplog.messages  # the indexes of a complete pass are durable, too


@pytest.mark.parametrize("seed", range(4))
def test_a_start_removes_replaced_files_once_the_new_names_are_durable(seed: int) -> None:
    disk = SimDisk()
    log = log_of_small_segments(disk)
    before, end = newest_values(log), log.log_end_offset
    disk.on_operation = fail_on("rename", ".swap")
    with pytest.raises(StorageError):
        clean(log, rules())
    disk.kill()
    disk.on_operation = fail_on("unlink", ".deleted")
    with pytest.raises(StorageError):
        open_log(disk, TINY, recovery_point=end)
    disk.on_operation, disk.keeps_order_of_names = None, False
    disk.crash(Random(seed))
    assert newest_values(open_log(disk, TINY, recovery_point=end)) == before


@pytest.mark.parametrize("unlinked", range(3))
@pytest.mark.parametrize("new_log", [log_of_writes, log_of_small_segments])
def test_replaced_files_are_removed_once_the_new_names_are_durable(
    new_log: Callable[[SimDisk], Log], unlinked: int
) -> None:
    """Also on a file system that keeps no order of names."""
    disk = SimDisk()
    log = new_log(disk)
    before = newest_values(log)
    cleaned = next(one for one in begin(log, rules()).run() if one is not None)
    replaced = log.compaction.swap_in(cleaned, log.settings)
    assert replaced
    remove = partial(log.compaction.remove_replaced, replaced)
    assert lose_power_at(disk, unlinked, remove, {"unlink"})
    disk.keeps_order_of_names = False
    disk.crash(Random(unlinked))
    again = open_log(disk, TINY, recovery_point=log.flushed_offset)
    assert newest_values(again) == before

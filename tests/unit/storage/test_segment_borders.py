"""Where one segment ends and the next begins: after cuts, deletions and losses of power."""

from random import Random

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import read_file, write_file_durably
from tests.support.storage.batches import DIRECTORY, batch, fill, open_log, read_all, stamped

COMPACTED = LogSettings(segment_bytes=400, index_interval_bytes=0, cleanup_policy="compact")
VALUES = [f"value-{index}" for index in range(20)]


def test_a_compacted_log_ends_where_a_loss_of_power_has_taken_whole_batches() -> None:
    disk = SimDisk()
    log = open_log(disk, COMPACTED)
    fill(log, VALUES)
    _, second, third, *_ = log.segment_base_offsets
    log.close()
    path = f"{DIRECTORY}/{second:020d}.log"
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
    log = open_log(disk)
    fill(log, VALUES)
    log.flush()
    border = log.segment_base_offsets[-1]
    log.truncate_to(border)
    fill(log, ["new"])
    assert log.flush() == border + 1
    disk.crash(Random(0))
    assert open_log(disk).log_end_offset == border + 1


def test_a_full_segment_is_as_new_as_its_records_after_it_was_cut() -> None:
    log = open_log()
    fill(log, VALUES)
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

"""Settings of a log that are replaced while it is open."""

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import UnexpectedOffset
from tests.support.storage.batches import DIRECTORY, batch, fill, open_log, read_all

VALUES = [f"value-{index}" for index in range(20)]


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
    sizes = [disk.size(f"{DIRECTORY}/{offset:020d}.index") for offset in (0, 20)]
    assert sizes == [0, 0]  # 4096 bytes for an entry; one batch
    log.close()
    assert disk.size(f"{DIRECTORY}/{21:020d}.index") > 0


def test_a_log_whose_topic_is_compacted_now_may_have_gaps_at_once() -> None:
    log = open_log()
    follower = batch("a", base_offset=5, leader_epoch=0)
    with pytest.raises(UnexpectedOffset):
        log.append_as_follower(follower)
    log.settings = LogSettings(cleanup_policy="compact")
    log.append_as_follower(follower)
    assert read_all(log) == follower

"""How often a log waits for the disk: counted, because each may take as long as a heartbeat."""

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from tests.support.storage.batches import fill, open_log, timed_batch


def test_a_clean_close_costs_four_fsyncs_and_none_if_nothing_was_appended() -> None:
    operations: list[str] = []
    disk = SimDisk(on_operation=lambda operation, path: operations.append(operation))
    log = open_log(disk)
    fill(log, ["a"])
    log.flush()  # writes the epoch, too
    fill(log, ["b"])
    operations.clear()
    log.close()
    assert [one for one in operations if "fsync" in one] == ["fsync", "fsync", "fsync", "fsync_dir"]
    log = open_log(disk, clean=True)
    operations.clear()
    log.close()
    assert [one for one in operations if "fsync" in one] == []


def test_the_first_record_of_an_epoch_waits_for_no_fsync() -> None:
    operations: list[str] = []
    disk = SimDisk(on_operation=lambda operation, path: operations.append(operation))
    log = open_log(disk)
    fill(log, ["a"], leader_epoch=1)
    log.epochs.assign(2, 1)
    fill(log, ["b"], leader_epoch=2)
    assert not [one for one in operations if "fsync" in one]


def test_a_second_lookup_by_time_loads_one_segment() -> None:
    """The first one learns the largest timestamp of every segment that it passes."""
    opened: list[str] = []
    disk = SimDisk(on_operation=lambda operation, path: opened.append(f"{operation} {path}"))
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

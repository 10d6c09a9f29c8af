"""Logs for which there is no room, or no file handle, for now: they stay of use."""

import errno
import os
from functools import partial
from itertools import count

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import DiskExhausted
from quorumlog.storage.io.log import Log
from tests.support.storage.batches import batch, fill, open_log
from tests.support.storage.refusing import Refusing


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
    log = open_log(disk)
    fill(log, ["a"])

    def fail(called: str, path: str) -> None:
        if called == operation and path.endswith(".log"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    disk.on_operation = fail
    if operation == "append":
        with pytest.raises(DiskExhausted):
            fill(log, ["b"])
    else:
        with pytest.raises(DiskExhausted):
            log.flush()
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
    for first in count():
        disk = SimDisk()
        settings = LogSettings(segment_bytes=200)
        log = open_log(disk, settings)
        fill(log, ["a" * 100, "b" * 100, "c" * 100])
        disk.open(f"{log.directory}/{2:020d}.log").append([b"torn"])
        disk.kill()
        refusing = Refusing(disk, first, 1)
        where = disk, log.directory, settings
        opened = partial(Log.open, *where, clean=False, log_start_offset=5)
        try:
            log = opened()
        except DiskExhausted:
            log = opened()
        assert (log.log_start_offset, log.log_end_offset, log.failure) == (5, 5, None)
        assert log.segment_base_offsets == (5,)
        if not refusing.has_refused:
            break
    assert first > 4

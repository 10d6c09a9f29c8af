"""The reserve of a log directory: it gives way to small files, and comes back."""

import errno
import os

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.storage.io.reserve import RESERVE_BYTES, RESERVE_FILE, STEP_BYTES, keep_reserve

RESERVE = f"/d/{RESERVE_FILE}"


def full_disk(*, with_reserve: bool = True) -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/d/p-0")
    write_file_durably(disk, "/d/small", b"old")
    if with_reserve:
        keep_reserve(disk, "/d")
    disk.capacity_bytes = disk.bytes_used()
    return disk


@pytest.mark.parametrize("path", ["/d/small", "/d/p-0/small"])
def test_a_small_file_finds_room_and_the_reserve_takes_back_what_is_left(path: str) -> None:
    disk = full_disk()
    write_file_durably(disk, path, bytes(100))
    assert read_file(disk, path) == bytes(100)
    assert disk.bytes_free() == 0
    assert disk.size(RESERVE) >= RESERVE_BYTES - 100


def test_the_reserve_is_whole_again_after_the_first_small_file_that_finds_room() -> None:
    disk = full_disk()
    write_file_durably(disk, "/d/p-0/small", bytes(100))
    disk.capacity_bytes = None
    write_file_durably(disk, "/d/small", b"new")
    assert disk.size(RESERVE) == RESERVE_BYTES


def test_all_of_it_is_given_up_before_a_small_file_is_refused() -> None:
    disk = full_disk()
    for number in range(RESERVE_BYTES // STEP_BYTES):
        write_file_durably(disk, f"/d/{number}", bytes(STEP_BYTES))
    with pytest.raises(OSError, match="No space"):
        write_file_durably(disk, "/d/last", bytes(STEP_BYTES))
    assert disk.size(RESERVE) == 0


def test_a_large_file_gets_nothing() -> None:
    disk = full_disk()
    with pytest.raises(OSError, match="No space"):
        write_file_durably(disk, "/d/small", bytes(STEP_BYTES + 1))
    assert disk.size(RESERVE) == RESERVE_BYTES


def test_without_a_reserve_a_full_disk_refuses_and_keeps_the_old_file() -> None:
    disk = full_disk(with_reserve=False)
    with pytest.raises(OSError, match="No space"):
        write_file_durably(disk, "/d/small", b"new")
    assert read_file(disk, "/d/small") == b"old"
    assert not disk.exists(RESERVE)


def test_an_error_that_is_not_for_want_of_room_gives_up_nothing() -> None:
    disk = full_disk()

    def fail(operation: str, path: str) -> None:
        if operation == "fsync":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    disk.on_operation = fail
    with pytest.raises(OSError, match="Input/output"):
        write_file_durably(disk, "/d/small", b"")
    assert disk.size(RESERVE) == RESERVE_BYTES


def test_one_that_is_too_long_is_cut() -> None:
    disk = full_disk()
    disk.capacity_bytes = None
    file = disk.open(RESERVE)
    file.append([bytes(10)])
    keep_reserve(disk, "/d")
    assert disk.size(RESERVE) == RESERVE_BYTES

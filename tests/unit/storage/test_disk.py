"""Disks: the behaviour that both share, the losses of the simulated one, and the reserve."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk, SimFile
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import (
    CHUNKS_PER_WRITE,
    RESERVE_BYTES,
    RESERVE_FILE,
    STEP_BYTES,
    Disk,
    RealDisk,
    keep_reserve,
    read_file,
    write_file_durably,
)
from quorumlog.storage.io.read_handles import KNOWS_WHAT_IS_CACHED
from tests.support.storage.batches import TINY, VALUES, fill, open_log, read_all, stamped
from tests.support.storage.crashes import fail_on


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    return (RealDisk(), str(tmp_path)) if request.param == "real" else (SimDisk(), "/tmp")


def test_a_file_is_appended_to_read_cut_and_read_again(place: tuple[Disk, str]) -> None:
    disk, top = place
    disk.mkdir(top)
    path = f"{top}/file"
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    with pytest.raises(FileNotFoundError):
        disk.size(path)
    file = disk.open(path, create=True)
    file.append([b"abc", memoryview(b"def"), bytearray(b"g")])
    assert (file.pread(3, 2), file.pread(9, 5), file.pread(9, 7)) == (b"cde", b"fg", b"")
    file.truncate(2)
    file.append([b"X"])
    file.fsync()
    assert (file.size(), disk.size(path), read_file(disk, path)) == (3, 3, b"abX")
    file.truncate(5)
    assert file.pread(9, 0) == b"abX\0\0"
    file.close()
    file.close()


def test_more_chunks_than_the_system_takes_at_once_are_written(place: tuple[Disk, str]) -> None:
    disk, top = place
    disk.mkdir(top)
    file = disk.open(f"{top}/file", create=True)
    chunks = [str(number).encode() for number in range(2 * CHUNKS_PER_WRITE + 3)]
    file.append(chunks)
    assert file.pread(1 << 20, 0) == b"".join(chunks)
    file.close()


def test_names_are_made_moved_and_removed(place: tuple[Disk, str]) -> None:
    disk, top = place
    disk.mkdir(f"{top}/a/b")
    disk.mkdir(f"{top}/a/b")
    for name in ("two", "one"):
        disk.open(f"{top}/a/{name}", create=True).close()
    disk.rename(f"{top}/a/two", f"{top}/a/one")
    disk.fsync_dir(f"{top}/a")
    assert disk.listdir(f"{top}/a") == ["b", "one"]
    assert disk.exists(f"{top}/a/b")
    assert disk.exists(f"{top}/a/one")
    assert not disk.exists(f"{top}/a/two")
    with pytest.raises(OSError, match=r"not empty"):
        disk.rmdir(f"{top}/a")
    disk.unlink(f"{top}/a/one")
    disk.rmdir(f"{top}/a/b")
    disk.rmdir(f"{top}/a")
    assert not disk.exists(f"{top}/a")
    for missing in (disk.listdir, disk.unlink, disk.fsync_dir):
        with pytest.raises(FileNotFoundError):
            missing(f"{top}/none")


def test_a_file_and_a_directory_are_synced_by_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda at: synced.append(os.fstat(at).st_ino))
    monkeypatch.setattr(os, "fsync", lambda at: synced.append(os.fstat(at).st_ino))
    disk, path = RealDisk(), f"{tmp_path}/file"
    disk.open(path, create=True).fsync()
    disk.fsync_dir(str(tmp_path))
    assert synced == [disk.identity(path).inode, disk.identity(str(tmp_path)).inode]


def test_a_file_keeps_its_number_under_another_name_and_a_copy_has_another(
    place: tuple[Disk, str],
) -> None:
    disk, top = place
    disk.mkdir(f"{top}/a")
    with pytest.raises(FileNotFoundError):
        disk.identity(f"{top}/a/one")
    for name in ("one", "two"):
        disk.open(f"{top}/a/{name}", create=True).close()
    one, two = disk.identity(f"{top}/a/one"), disk.identity(f"{top}/a/two")
    assert one != two
    disk.open(f"{top}/a/one", create=True).append([b"more"])
    assert disk.identity(f"{top}/a/one") == one
    disk.rename(f"{top}/a/two", f"{top}/a/one")
    assert disk.identity(f"{top}/a/one") == two
    disk.rename(f"{top}/a", f"{top}/b")
    assert disk.identity(f"{top}/b/one") == two


def test_a_file_that_takes_the_inode_number_of_a_removed_one_is_another(
    place: tuple[Disk, str],
) -> None:
    disk, top = place
    disk.mkdir(top)
    identities = []
    for _ in range(20):
        disk.open(f"{top}/one", create=True).close()
        identities.append(disk.identity(f"{top}/one"))
        disk.unlink(f"{top}/one")
    assert len({*identities}) == 20


def test_a_directory_is_moved_with_all_that_is_in_it(place: tuple[Disk, str]) -> None:
    disk, top = place
    disk.mkdir(f"{top}/t-0/inner")
    disk.mkdir(f"{top}/t-00")
    file = disk.open(f"{top}/t-0/inner/file", create=True)
    file.append([b"kept"])
    disk.rename(f"{top}/t-0", f"{top}/t-0.1-delete")
    assert disk.listdir(top) == ["t-0.1-delete", "t-00"]
    assert read_file(disk, f"{top}/t-0.1-delete/inner/file") == b"kept"
    disk.mkdir(f"{top}/t-0")
    assert disk.listdir(f"{top}/t-0") == []
    file.append([b"!"])  # the handle is of the file, whatever its path
    assert read_file(disk, f"{top}/t-0.1-delete/inner/file") == b"kept!"
    with pytest.raises(OSError, match="not empty"):
        disk.rename(f"{top}/t-0", f"{top}/t-0.1-delete")
    file.close()


def test_a_directory_has_one_owner(place: tuple[Disk, str]) -> None:
    disk, top = place
    disk.mkdir(top)
    lock = disk.lock(f"{top}/.lock")
    with pytest.raises(StorageError, match="another process"):
        disk.lock(f"{top}/.lock")
    lock.release()
    disk.lock(f"{top}/.lock").release()


def test_a_log_lives_on_either(place: tuple[Disk, str]) -> None:
    disk, top = place
    log = open_log(disk, TINY, directory=f"{top}/data/topic-0")
    fill(log, VALUES)
    log.truncate_to(11)
    log.close()
    log = open_log(disk, TINY, directory=f"{top}/data/topic-0", clean=True)
    fill(log, VALUES[11:])
    assert read_all(log) == stamped(VALUES)
    log.truncate_fully_and_start_at(5)
    log.close(clean=False)
    log = open_log(disk, TINY, directory=f"{top}/data/topic-0")
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    log.close()


def sim_file(content: bytes = b"") -> tuple[SimDisk, SimFile]:
    """A file with durable content, in a directory that has been synced."""
    disk = SimDisk()
    disk.mkdir("/d")
    file = disk.open("/d/file", create=True)
    disk.fsync_dir("/d")
    if content:
        file.append([content])
        file.fsync()
    return disk, file


def test_a_crash_keeps_what_was_synced_and_some_beginning_of_the_rest() -> None:
    found = set()
    for seed in range(200):
        disk, file = sim_file(b"safe")
        for letter in b"abc":
            file.append([bytes([letter]) * 2])
        disk.crash(Random(seed))
        found.add(read_file(disk, "/d/file"))
    whole = {content for content in found if b"safeaabbcc".startswith(content)}
    assert {len(content) for content in whole} == {4, 5, 6, 7, 8, 9, 10}
    assert all(content.startswith(b"safe") for content in found)
    assert any(b"\0" in content for content in found - whole)


def test_names_vanish_unless_their_directory_was_synced() -> None:
    found = set()
    for seed in range(50):
        disk, _ = sim_file(b"old")
        draft = disk.open("/d/draft", create=True)
        draft.append([b"new"])
        draft.fsync()
        disk.rename("/d/draft", "/d/file")
        disk.crash(Random(seed))
        found.add((tuple(disk.listdir("/d")), read_file(disk, "/d/file")))
    assert found == {(("file",), b"old"), (("draft", "file"), b"old"), (("file",), b"new")}


def test_a_rename_may_outlive_the_content_it_was_made_for() -> None:
    found = set()
    for seed in range(50):
        disk, _ = sim_file()
        disk.open("/d/draft", create=True).append([b"new"])
        disk.rename("/d/draft", "/d/file")
        disk.fsync_dir("/d")
        disk.crash(Random(seed))
        found.add(read_file(disk, "/d/file"))
    assert {b"", b"new"} <= found


def test_a_directory_may_have_its_old_name_again_unless_its_parent_was_synced() -> None:
    found = set()
    for seed in range(50):
        disk, _ = sim_file(b"safe")
        disk.fsync_dir("/d")
        disk.rename("/d", "/e")
        disk.rename("/e", "/f")
        disk.crash(Random(seed))
        (directory,) = disk.listdir("/")
        assert read_file(disk, f"/{directory}/file") == b"safe"
        found.add(directory)
        disk.rename(f"/{directory}", "/g")
        disk.fsync_dir("/")
        disk.crash(Random(seed))
        assert disk.listdir("/") == ["g"]
    assert found == {"d", "e", "f"}


def test_a_death_keeps_all_but_handles_and_locks() -> None:
    disk, file = sim_file()
    file.append([b"abc"])
    disk.lock("/d/.lock")
    disk.kill()
    assert read_file(disk, "/d/file") == b"abc"
    disk.lock("/d/.lock").release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.append([b"d"])


def test_pages_dropped_by_a_failed_fsync_are_not_saved_by_the_next() -> None:
    disk, file = sim_file()
    file.append([b"lost"])
    disk.on_operation = fail_on("fsync")
    with pytest.raises(OSError, match="/d/file"):
        file.fsync()
    disk.on_operation = None
    assert file.pread(9, 0) == b"lost"
    file.append([b"kept"])
    file.fsync()
    disk.crash(Random(0))
    assert read_file(disk, "/d/file") == b"\0\0\0\0kept"
    assert disk.durable_bytes("/d/file") == b"\0\0\0\0kept"
    assert disk.durable_bytes("/d/none") is None


@pytest.mark.parametrize("seed", range(4))
def test_pages_dropped_by_a_failed_fsync_may_leave_the_page_cache(seed: int) -> None:
    disk, file = sim_file(b"safe")
    disk.fsync_dir("/d")
    other = disk.open("/d/other", create=True)
    other.append([b"in memory"])
    file.append([b"lost"])
    disk.on_operation = fail_on("fsync")
    with pytest.raises(OSError, match=r"/d/file"):
        file.fsync()
    disk.on_operation = None
    disk.kill()
    assert read_file(disk, "/d/file") == b"safelost"
    disk.evict_lost_pages(Random(seed))
    assert read_file(disk, "/d/file") in {b"safe", b"safe\0\0\0\0"}
    assert read_file(disk, "/d/other") == b"in memory"
    seen = read_file(disk, "/d/file")
    disk.evict_lost_pages(Random(seed + 1))
    assert read_file(disk, "/d/file") == seen


def test_a_copy_that_is_put_back_is_the_old_content_in_new_files() -> None:
    disk = SimDisk()
    disk.mkdir("/data/log")
    disk.mkdir("/data2")
    file = disk.open("/data/log/one", create=True)
    file.append([b"old"])
    before, copy = disk.identity("/data/log/one"), disk.copied("/data")
    file.append([b", new"])
    file.fsync()
    disk.open("/data/two", create=True)
    disk.mkdir("/data/later")
    disk.kill()
    disk.put_back("/data", copy)
    assert disk.listdir("/") == ["data", "data2"]
    assert disk.listdir("/data") == ["log"]
    assert disk.identity("/data/log/one") != before
    disk.crash(Random(1))
    assert read_file(disk, "/data/log/one") == b"old"
    disk.open("/data/log/one").append([b", other"])
    disk.put_back("/data", copy)
    assert read_file(disk, "/data/log/one") == b"old"


def test_a_full_disk_takes_what_fits() -> None:
    disk, file = sim_file()
    disk.capacity_bytes = 6
    file.append([b"abcd"])
    with pytest.raises(OSError, match="No space"):
        file.append([b"efgh"])
    assert file.pread(9, 0) == b"abcdef"


def test_the_same_seed_crashes_alike() -> None:
    def run(seed: int) -> bytes:
        disk = SimDisk()
        fill(open_log(disk), VALUES)
        disk.crash(Random(seed))
        return read_all(open_log(disk))

    assert [run(seed) for seed in range(10)] == [run(seed) for seed in range(10)]


def fail_with(error: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    return fail


@pytest.mark.skipif(not KNOWS_WHAT_IS_CACHED, reason="the system does not say what is in memory")
def test_a_read_that_may_not_wait_has_what_is_in_memory_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().open(f"{tmp_path}/file", create=True)
    file.append([b"0123456789"])
    assert file.pread_cached(4, 2) == b"2345"
    assert file.pread_cached(4, 8) is None  # the rest may be on the disk
    monkeypatch.setattr(os, "preadv", fail_with(errno.EAGAIN))
    assert file.pread_cached(4, 2) is None
    monkeypatch.setattr(os, "preadv", fail_with(errno.EOPNOTSUPP))  # tmpfs
    assert file.pread_cached(4, 2) == b"2345"
    monkeypatch.setattr(os, "preadv", fail_with(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        file.pread_cached(4, 2)


@pytest.mark.skipif(not KNOWS_WHAT_IS_CACHED, reason="the system does not say what is in memory")
def test_a_file_that_nobody_has_open_is_not_opened_for_a_read_that_may_not_wait(
    tmp_path: Path,
) -> None:
    disk = RealDisk()
    disk.open(f"{tmp_path}/file", create=True).append([b"0123"])
    file = disk.open_to_read(f"{tmp_path}/file")
    assert file.pread_cached(4, 0) is None
    file.size()
    assert file.pread_cached(4, 0) == b"0123"


# --- the reserve of a log directory: it gives way to small files, and comes back ---


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
    disk.capacity_bytes = None
    write_file_durably(disk, "/d/small", b"new")  # the first that finds room makes it whole
    assert disk.size(RESERVE) == RESERVE_BYTES
    disk.open(RESERVE).append([bytes(10)])
    keep_reserve(disk, "/d")  # one that is too long is cut
    assert disk.size(RESERVE) == RESERVE_BYTES


def test_all_of_it_is_given_up_for_small_files_and_nothing_for_a_large_one() -> None:
    disk = full_disk()
    with pytest.raises(OSError, match="No space"):
        write_file_durably(disk, "/d/small", bytes(STEP_BYTES + 1))
    assert disk.size(RESERVE) == RESERVE_BYTES
    for number in range(RESERVE_BYTES // STEP_BYTES):
        write_file_durably(disk, f"/d/{number}", bytes(STEP_BYTES))
    with pytest.raises(OSError, match="No space"):
        write_file_durably(disk, "/d/last", bytes(STEP_BYTES))
    assert disk.size(RESERVE) == 0


def test_without_a_reserve_a_full_disk_refuses_and_keeps_the_old_file() -> None:
    disk = full_disk(with_reserve=False)
    with pytest.raises(OSError, match="No space"):
        write_file_durably(disk, "/d/small", b"new")
    assert read_file(disk, "/d/small") == b"old"
    assert not disk.exists(RESERVE)


def test_an_error_that_is_not_for_want_of_room_gives_up_nothing() -> None:
    disk = full_disk()
    disk.on_operation = fail_on("fsync")
    with pytest.raises(OSError, match="Input/output"):
        write_file_durably(disk, "/d/small", b"")
    assert disk.size(RESERVE) == RESERVE_BYTES

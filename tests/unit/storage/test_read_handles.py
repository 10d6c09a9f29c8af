"""The handles of files that are only read: few stay open, and no read loses the one it uses."""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quorumlog.storage.errors import DiskExhausted
from quorumlog.storage.io.append_handles import AppendHandles
from quorumlog.storage.io.disk import RealDisk, RealFile
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.read_handles import ReadFile, ReadHandles
from tests.support.storage.batches import TINY, fill, open_log, read_all, stamped

IDLE_MAX, APPENDED_MAX = 4, 2
VALUES = [f"value-{index}" * 10 for index in range(60)]  # two in a segment


class CountingDisk(RealDisk):
    """`opened`: how many handles of `.log` files are open; `most`: how many were."""

    def __init__(self, handles: ReadHandles) -> None:
        super().__init__(handles, AppendHandles(APPENDED_MAX))
        self.opened = self.most = 0

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        if not path.endswith(".log"):
            return file
        self.count(1)
        return CountedFile(os.dup(file._descriptor), file, self.count)

    def count(self, change: int) -> None:
        self.opened += change
        self.most = max(self.most, self.opened)


class CountedFile(RealFile):
    def __init__(self, descriptor: int, file: RealFile, count: Callable[[int], None]) -> None:
        super().__init__(descriptor)
        file.close()
        self._count = count

    def close(self) -> None:
        if self._descriptor >= 0:
            self._count(-1)
        super().close()


def logs_in(tmp_path: Path, disk: RealDisk, count: int) -> list[Log]:
    return [open_log(disk, TINY, directory=f"{tmp_path}/topic-{index}") for index in range(count)]


def close(logs: list[Log]) -> None:
    for log in logs:
        log.close()


def test_ten_times_as_many_full_segments_as_idle_handles_are_read(tmp_path: Path) -> None:
    disk = CountingDisk(ReadHandles(IDLE_MAX))
    logs = logs_in(tmp_path, disk, 3)
    for log in logs:
        fill(log, VALUES)
        log.flush()
    assert sum(len(log.segment_base_offsets) for log in logs) > 10 * IDLE_MAX
    for _ in range(2):
        for log in logs:
            assert read_all(log) == stamped(VALUES)
    assert disk.opened == APPENDED_MAX + IDLE_MAX
    disk.most = 0
    for log in logs:
        assert read_all(log) == stamped(VALUES)
    assert disk.most == APPENDED_MAX + IDLE_MAX + 1  # the one that a read has taken
    close(logs)
    assert disk.opened == 0


def test_a_log_that_is_only_written_keeps_no_handle_for_each_full_segment(tmp_path: Path) -> None:
    disk = CountingDisk(ReadHandles(IDLE_MAX))
    [log] = logs_in(tmp_path, disk, 1)
    fill(log, VALUES)
    assert len(log.segment_base_offsets) > 10 * APPENDED_MAX
    assert disk.opened == APPENDED_MAX
    log.flush()
    log.share_flushed_segments()
    log.truncate_to(len(VALUES) // 2)  # a segment that was full is appended to
    fill(log, VALUES[len(VALUES) // 2 :])
    assert read_all(log) == stamped(VALUES)
    log.close()
    assert disk.opened == 0


def test_rolling_gives_up_the_handles_of_flushed_segments(tmp_path: Path) -> None:
    disk = CountingDisk(ReadHandles(IDLE_MAX))
    [log] = logs_in(tmp_path, disk, 1)
    for value in VALUES:
        fill(log, [value])
        log.flush()
    assert disk.most <= IDLE_MAX + APPENDED_MAX + 1
    log.close()


@pytest.fixture
def handles_left() -> Iterator[Callable[[int], None]]:
    """Leave the process so many handles that it may open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave(count: int) -> None:
        taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(count)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, limits[1]))
        for descriptor in taken:
            os.close(descriptor)

    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_idle_handles_make_room_when_the_process_has_none_left(
    tmp_path: Path, handles_left: Callable[[int], None]
) -> None:
    disk = RealDisk()
    [log] = logs_in(tmp_path, disk, 1)
    fill(log, VALUES)
    log.flush()
    log.share_flushed_segments()
    handles_left(3)
    assert read_all(log) == stamped(VALUES)
    for value in VALUES[:10]:  # that starts segments
        fill(log, [value])
        log.flush()
    assert read_all(log) == stamped(VALUES + VALUES[:10])
    log.close()


def test_an_open_without_any_handle_to_give_up_is_refused_for_now(
    tmp_path: Path, handles_left: Callable[[int], None]
) -> None:
    disk = RealDisk()
    disk.mkdir(f"{tmp_path}/topic-0")
    handles_left(1)
    kept = os.open(os.devnull, os.O_RDONLY)
    try:
        with pytest.raises(DiskExhausted):
            open_log(disk, TINY, directory=f"{tmp_path}/topic-0")
    finally:
        os.close(kept)


class HeldHandle:
    """A handle whose read ends when the test says so."""

    def __init__(self) -> None:
        self.is_closed = False
        self.began, self.may_end = threading.Event(), threading.Event()

    def pread(self, size: int, position: int) -> bytes:
        self.began.set()
        assert self.may_end.wait(20)
        return b"closed" if self.is_closed else b"read"

    def pread_cached(self, size: int, position: int) -> None:
        return None

    def size(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("ending", ["the file is closed", "its room is needed"])
def test_a_handle_that_is_read_in_a_thread_is_not_closed_meanwhile(ending: str) -> None:
    handles = ReadHandles(1)
    opened = list[HeldHandle]()

    def open_held() -> HeldHandle:
        opened.append(HeldHandle())
        return opened[-1]

    file, other = ReadFile(handles, open_held), ReadFile(handles, open_held)
    file.size()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(file.pread, 4, 0)
        assert opened[0].began.wait(20)
        if ending == "the file is closed":
            file.close()
        else:
            assert not handles.close_oldest()
            other.size()
        opened[0].may_end.set()
        assert reading.result() == b"read"
    assert opened[0].is_closed is (ending == "the file is closed")
    assert ending == "the file is closed" or opened[1].is_closed  # the newest use stays


def test_threads_that_read_the_same_files_have_handles_of_their_own(tmp_path: Path) -> None:
    disk = RealDisk(ReadHandles(2))
    paths = [f"{tmp_path}/{index}" for index in range(20)]
    for path in paths:
        file = disk.open(path, create=True)
        file.append([path.encode()])
        file.close()
    files = [disk.open_to_read(path) for path in paths]

    def read(turn: int) -> None:
        for index in range(200):
            chosen = (index * (turn + 1)) % len(files)
            assert files[chosen].pread(1000, 0) == paths[chosen].encode()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    for read_file in files:
        read_file.close()
    assert not disk._read_handles.close_oldest()

"""The handles of files: few stay open, no write is lost, and no read loses the one it uses."""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from errno import EBADF
from pathlib import Path
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import APPEND_HANDLES_MAX, SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.append_handles import AppendFile, AppendHandles
from quorumlog.storage.io.disk import RealDisk, RealFile
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.read_handles import ReadFile, ReadHandles
from tests.support.storage.batches import TINY, batch, fill, open_log, read_all, stamped
from tests.support.storage.cleaning import records_of

OPEN_MAX = 4
COUNT = 10 * OPEN_MAX


def logs_on(disk: RealDisk | SimDisk, root: str, count: int = COUNT) -> list[Log]:
    return [open_log(disk, LogSettings(), directory=f"{root}/topic-{at}") for at in range(count)]


def values_of(log: Log) -> list[str]:
    return [(record.value or b"").decode() for record in records_of(log)]


def write_in_turn(logs: list[Log], *values: str) -> None:
    for value in values:
        for log in logs:
            fill(log, [value])


def test_ten_times_as_many_logs_as_handles_are_written_read_and_found_again(tmp_path: Path) -> None:
    handles = AppendHandles(OPEN_MAX)
    disk = RealDisk(append_handles=handles)
    logs = logs_on(disk, str(tmp_path))
    write_in_turn(logs, "a", "b", "c")
    assert handles.open_count == OPEN_MAX
    for log in logs:
        assert read_all(log) == stamped(["a", "b", "c"])
        assert log.flush() == 3
        assert handles.open_count <= OPEN_MAX
    for log in logs:
        log.close()
    assert handles.open_count == 0
    for log in logs_on(RealDisk(), str(tmp_path)):
        assert read_all(log) == stamped(["a", "b", "c"])
        log.close()


@pytest.mark.parametrize("seed", range(8))
def test_what_ten_times_as_many_logs_as_handles_have_flushed_survives_power_loss(seed: int) -> None:
    disk, rng = SimDisk(), Random(seed)
    logs = logs_on(disk, "/data", 10 * APPEND_HANDLES_MAX)
    write_in_turn(logs, "a", "b")
    flushed = {log.directory: log.flush() for log in logs if rng.randrange(2)}
    write_in_turn(logs, "c")
    disk.crash(rng)
    for log in logs_on(disk, "/data", 10 * APPEND_HANDLES_MAX):
        values = values_of(log)
        assert values == ["a", "b", "c"][: len(values)]
        assert len(values) >= flushed.get(log.directory, 0)


@pytest.mark.parametrize("seed", range(8))
def test_a_write_that_was_lost_while_no_handle_was_open_fails_the_flush(seed: int) -> None:
    """The system has forgotten the error with the file: the fsync of a new handle succeeds."""
    disk, lost = SimDisk(), set[str]()

    def loses(path: str) -> bool:
        lost.add(path)
        return True

    logs = logs_on(disk, "/data", 3 * APPEND_HANDLES_MAX)
    write_in_turn(logs, "a")
    for log in logs:
        log.flush()
    disk.loses_write_back = loses
    write_in_turn(logs, "b")
    disk.loses_write_back = lambda path: False
    assert 0 < len(lost) < len(logs)
    for log in logs:
        if f"{log.directory}/{0:020d}.log" in lost:
            with pytest.raises(StorageError, match="lost before it was flushed"):
                log.flush()
            assert log.failure is not None
            assert log.flushed_offset == 1
        else:
            assert log.flush() == 2
    disk.crash(Random(seed))
    for log in logs_on(disk, "/data", 3 * APPEND_HANDLES_MAX):
        assert values_of(log)[:1] == ["a"]


def test_a_flush_that_reads_nothing_again_claims_what_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the test before can find something: the disk itself tells nothing."""
    monkeypatch.setattr(AppendFile, "is_in_doubt", False)
    disk = SimDisk()
    logs = logs_on(disk, "/data", 3 * APPEND_HANDLES_MAX)
    disk.loses_write_back = lambda path: True
    write_in_turn(logs, "a")
    for log in logs:
        assert log.flush() == 1
    disk.crash(Random(0))
    found = [values_of(log) for log in logs_on(disk, "/data", 3 * APPEND_HANDLES_MAX)]
    assert [] in found


def test_what_was_flushed_after_it_was_read_again_is_not_read_a_third_time() -> None:
    reads: list[str] = []
    disk = SimDisk(on_operation=lambda operation, path: reads.append(operation))
    logs = logs_on(disk, "/data", 3 * APPEND_HANDLES_MAX)
    for _ in range(2):
        write_in_turn(logs, "a")
        reads.clear()
        for log in logs:
            log.flush()
        # Each is let go of by then. Two preads for each: the headers, and the one new batch.
        assert reads.count("pread") == 2 * len(logs)
        reads.clear()
        for log in logs:
            log.flush()
        assert reads.count("pread") == 0


def test_a_file_that_has_another_size_than_when_it_was_let_go_of_is_refused(tmp_path: Path) -> None:
    disk = RealDisk(append_handles=AppendHandles(1))
    first, second = logs_on(disk, str(tmp_path), 2)
    write_in_turn([first, second], "a")
    with (tmp_path / "topic-0" / f"{0:020d}.log").open("r+b") as file:
        file.truncate(5)
    with pytest.raises(StorageError, match="another size"):
        first.append_as_leader(batch("b"), leader_epoch=0, wall_ms=0)
    assert first.failure is not None
    second.close()


def test_a_handle_in_use_is_not_closed_and_a_file_that_is_closed_is_not_opened(
    tmp_path: Path,
) -> None:
    handles = AppendHandles(1)
    disk = RealDisk(append_handles=handles)
    files = [disk.open_to_append(f"{tmp_path}/{at}", create=True) for at in range(3)]
    used = handles.take(files[0])
    assert used is not None
    for file in files[1:]:
        file.append([b"x"])
    used.append([b"y"])  # it is still open
    files[0].close()
    assert used.size() == 1
    handles.give_back(files[0])
    with pytest.raises(OSError, match=os.strerror(EBADF)):
        files[0].append([b"z"])
    with pytest.raises(OSError, match=os.strerror(EBADF)):
        files[0].fsync()
    assert files[0].pread_cached(1, 0) is None
    assert handles.open_count == 0


def test_when_handles_are_too_many_some_of_the_least_recently_used_are_closed_at_once(
    tmp_path: Path,
) -> None:
    handles = AppendHandles(32)
    disk = RealDisk(append_handles=handles)
    files = [disk.open_to_append(f"{tmp_path}/{at}", create=True) for at in range(32)]
    assert handles.open_count == 32
    files.append(disk.open_to_append(f"{tmp_path}/32", create=True))
    assert handles.open_count == 30
    closed = [handles.take(file, may_open=False) is None for file in files]
    assert closed == [True] * 3 + [False] * 30


def test_a_file_that_is_there_gets_a_handle_with_its_first_use(tmp_path: Path) -> None:
    handles = AppendHandles(4)
    disk = RealDisk(append_handles=handles)
    (tmp_path / "known").write_bytes(b"xy")
    file, missing = (disk.open_to_append(f"{tmp_path}/{name}") for name in ("known", "missing"))
    assert handles.open_count == 0
    assert file.size() == 2
    assert handles.open_count == 1
    with pytest.raises(FileNotFoundError):
        missing.size()
    assert handles.open_count == 1


def test_threads_that_append_flush_and_read_lose_nothing(tmp_path: Path) -> None:
    disk = RealDisk(append_handles=AppendHandles(2))
    logs = logs_on(disk, str(tmp_path), 6)
    is_over, errors = threading.Event(), list[BaseException]()

    def flush_again_and_again() -> None:
        try:
            while not is_over.is_set():
                for log in logs:
                    log.flush()
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    values = [str(at) for at in range(100)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(flush_again_and_again)
        write_in_turn(logs, *values)
        is_over.set()
    assert errors == []
    for log in logs:
        assert read_all(log) == stamped(values)
        log.close()


def test_a_read_of_what_has_no_handle_does_not_open_it_on_the_loop(tmp_path: Path) -> None:
    disk = RealDisk(append_handles=AppendHandles(1))
    first, second = (disk.open_to_append(f"{tmp_path}/{at}", create=True) for at in range(2))
    first.append([b"x"])
    second.append([b"y"])
    assert first.pread_cached(1, 0) is None
    assert first.pread(1, 0) == b"x"
    assert first.pread_cached(1, 0) == b"x"


# --- files that are only read ---


IDLE_MAX, APPENDED_MAX = 4, 2
LONG_VALUES = [f"value-{index}" * 10 for index in range(60)]  # two in a segment


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
        fill(log, LONG_VALUES)
        log.flush()
    assert sum(len(log.segment_base_offsets) for log in logs) > 10 * IDLE_MAX
    for _ in range(2):
        for log in logs:
            assert read_all(log) == stamped(LONG_VALUES)
    assert disk.opened == APPENDED_MAX + IDLE_MAX
    disk.most = 0
    for log in logs:
        assert read_all(log) == stamped(LONG_VALUES)
    assert disk.most == APPENDED_MAX + IDLE_MAX + 1  # the one that a read has taken
    close(logs)
    assert disk.opened == 0


def test_a_log_that_is_only_written_keeps_no_handle_for_each_full_segment(tmp_path: Path) -> None:
    disk = CountingDisk(ReadHandles(IDLE_MAX))
    [log] = logs_in(tmp_path, disk, 1)
    fill(log, LONG_VALUES)
    assert len(log.segment_base_offsets) > 10 * APPENDED_MAX
    assert disk.opened == APPENDED_MAX
    log.flush()
    log.share_flushed_segments()
    log.truncate_to(len(LONG_VALUES) // 2)  # a segment that was full is appended to
    fill(log, LONG_VALUES[len(LONG_VALUES) // 2 :])
    assert read_all(log) == stamped(LONG_VALUES)
    log.close()
    assert disk.opened == 0


def test_rolling_gives_up_the_handles_of_flushed_segments(tmp_path: Path) -> None:
    disk = CountingDisk(ReadHandles(IDLE_MAX))
    [log] = logs_in(tmp_path, disk, 1)
    for value in LONG_VALUES:
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
    fill(log, LONG_VALUES)
    log.flush()
    log.share_flushed_segments()
    handles_left(3)
    assert read_all(log) == stamped(LONG_VALUES)
    for value in LONG_VALUES[:10]:  # that starts segments
        fill(log, [value])
        log.flush()
    assert read_all(log) == stamped(LONG_VALUES + LONG_VALUES[:10])
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

    def lend(self, size: int, position: int) -> None:
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

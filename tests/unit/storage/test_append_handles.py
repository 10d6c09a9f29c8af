"""The handles of files that are appended to: few stay open, and what was let go of is not lost."""

import os
import threading
from errno import EBADF
from pathlib import Path
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import APPEND_HANDLES_MAX, SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.append_handles import AppendFile, AppendHandles
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import decode_batches
from tests.support.storage.batches import batch, fill, open_log, read_all, stamped

OPEN_MAX = 4
COUNT = 10 * OPEN_MAX


def logs_on(disk: RealDisk | SimDisk, root: str, count: int = COUNT) -> list[Log]:
    return [open_log(disk, LogSettings(), directory=f"{root}/topic-{at}") for at in range(count)]


def values_of(log: Log) -> list[str]:
    records = [record for _, found in decode_batches(read_all(log)) for record in found]
    return [(record.value or b"").decode() for record in records]


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


@pytest.mark.parametrize("seed", range(20))
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


@pytest.mark.parametrize("seed", range(20))
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
    assert [handles.take(file, may_open=False) is None for file in files] == [
        *(True for _ in range(3)),
        *(False for _ in range(30)),
    ]


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

    threads = [threading.Thread(target=flush_again_and_again) for _ in range(2)]
    for thread in threads:
        thread.start()
    values = [str(at) for at in range(100)]
    write_in_turn(logs, *values)
    is_over.set()
    for thread in threads:
        thread.join()
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

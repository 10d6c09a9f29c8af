"""Several log directories of one broker: each has its own files, its own logs, and its own past."""

from itertools import count
from pathlib import Path

import pytest

from quorumlog.broker.partitions.core.placement import Candidate, NoPlace, place
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.registrations import BrokerProcess, Registrations
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.controller_client import DirectoryReport
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.storage.io.disk import Disk, RealDisk, keep_reserve
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.log_directories import write
from tests.support.storage.refusing import Refusing

ATS = [TopicPartition("orders", index) for index in range(4)]
ID, OTHER_ID = TopicId(b"i" * 16), TopicId(b"o" * 16)
BATCH = encode_batch([Record(offset, 1, None, b"x") for offset in range(4)])
Opened = dict[TopicPartition, Log]


def directories(
    at: Path | str,
    *names: str,
    refused: tuple[str, ...] = (),
    disk: Disk | None = None,
    process: str = "",
) -> LogDirectories:
    """Return directories of these names below a path, which are their ids as well."""
    made = []
    for name in names or ("a", "b"):
        made.append(LogDirectory(disk or RealDisk(), f"{at}/{name}", LogSettings()))
        made[-1].directory_id = name
    return LogDirectories(made, refused, BrokerProcess(incarnation_id=process, boot_id="boot"))


def started(tmp_path: Path, *names: str, refused: tuple[str, ...] = ()) -> LogDirectories:
    logs = directories(tmp_path, *names, refused=refused)
    logs.start()
    return logs


def placed(
    logs: LogDirectories,
    at: TopicPartition,
    assigned: str | None = None,
    *,
    topic_id: TopicId = ID,
    is_new: bool = True,
) -> LogDirectory:
    home = logs.place(at, topic_id, assigned, is_new=is_new)
    assert isinstance(home, LogDirectory)
    return home


def open_all(logs: LogDirectories, ats: list[TopicPartition] = ATS) -> Opened:
    return {at: placed(logs, at).open(at, ID, {})[0] for at in ats}


def fill(tmp_path: Path) -> tuple[LogDirectories, Opened]:
    logs = started(tmp_path)
    return logs, written(open_all(logs))


def written(opened: Opened) -> Opened:
    for log in opened.values():
        write(log, BATCH)
    return opened


def finish(logs: LogDirectories, opened: Opened, *, torn: str = "") -> None:
    """Close all; in the directory `torn`, a log is not closed cleanly."""
    unclean = []
    for at, log in opened.items():
        home = logs.home_of(at)
        assert home is not None
        log.close(clean=home.directory_id != torn)
        if home.directory_id == torn:
            unclean.append(home)
    logs.finish(opened, dict.fromkeys(opened, Offset(3)), 7, unclean=unclean)


def logs_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if path.is_dir()}


def test_logs_are_spread_and_found_again(tmp_path: Path) -> None:
    logs, opened = fill(tmp_path)
    finish(logs, opened)
    assert logs_in(tmp_path / "a") == {"orders-0", "orders-2"}
    assert logs_in(tmp_path / "b") == {"orders-1", "orders-3"}
    for name, indexes in (("a", (0, 2)), ("b", (1, 3))):
        for file_name, offset in (("replication", 3), ("recovery-point", 4)):
            lines = (tmp_path / name / f"{file_name}-offset-checkpoint").read_text().splitlines()
            assert lines[2:-1] == [f"orders {index} {offset}" for index in indexes]
    again = started(tmp_path)
    assert again.clean_shutdown_epoch == 7
    for at in reversed(ATS):  # in another order than before
        log, high_watermark = placed(again, at, is_new=False).open(at, ID, {})
        assert (log.log_end_offset, high_watermark) == (4, 3)
        log.close()


def test_only_the_logs_of_an_unclean_directory_are_checked(tmp_path: Path) -> None:
    logs, opened = fill(tmp_path)
    finish(logs, opened, torn="b")
    again = started(tmp_path)
    assert [one.was_clean for one in again.online] == [True, False]
    assert again.clean_shutdown_epoch is None  # for the controller, the broker was not closed
    for at, index in ((ATS[0], 0), (ATS[1], 1)):
        segment = tmp_path / "ab"[index] / str(at) / f"{0:020d}.log"
        segment.write_bytes(segment.read_bytes() + BATCH[:30])  # noticed only if it is looked at
    opened = open_all(again)
    sizes = [log.size for log in opened.values()]
    assert sizes[1] == sizes[3] == len(BATCH)
    finish(again, opened)


def test_the_same_log_in_two_directories_is_an_error_that_names_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        logs = started(tmp_path, name)
        finish(logs, written(open_all(logs, ATS[:1])))
    logs = started(tmp_path)
    assert logs.place(ATS[0], ID, None, is_new=False) is None
    assert f"remove all but one: {tmp_path / 'a'} {tmp_path / 'b'}" in caplog.text
    home = placed(logs, ATS[0], "b", is_new=False)
    assert home.directory_id == "b"  # the metadata knows which one it is
    for one in logs.stray_work(ATS[:1]):
        one.work()
    [stray] = logs_in(tmp_path / "a")
    assert stray.endswith("-stray")
    assert logs_in(tmp_path / "b") == {"orders-0"}


def test_a_log_of_a_deleted_topic_does_not_hide_the_new_one(tmp_path: Path) -> None:
    old = started(tmp_path, "a")
    log, _ = placed(old, ATS[0], topic_id=OTHER_ID).open(ATS[0], OTHER_ID, {})
    finish(old, written({ATS[0]: log}))
    new = started(tmp_path, "b")
    finish(new, written(open_all(new, ATS[:1])))
    assert placed(started(tmp_path), ATS[0], is_new=False).directory_id == "b"


def test_a_directory_that_cannot_be_read_at_the_start_is_left_out(tmp_path: Path) -> None:
    logs, opened = fill(tmp_path)
    finish(logs, opened)
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    (tmp_path / "b").write_text("no directory")
    logs = started(tmp_path)
    assert logs.report() == DirectoryReport(online=("a",), offline=("b",), has_offline=True)
    assert logs.clean_shutdown_epoch == 7
    assert isinstance(logs.place(ATS[0], ID, None, is_new=False), LogDirectory)
    assert logs.place(ATS[1], ID, None, is_new=False) is None
    with pytest.raises(StorageError, match="cannot use"):
        started(tmp_path, "b")  # the only one


def test_one_directory_is_reported_as_before(tmp_path: Path) -> None:
    assert started(tmp_path, "a").report() == DirectoryReport()
    refused = started(tmp_path, "a", refused=(str(tmp_path / "b"),))
    assert refused.report() == DirectoryReport(online=("a",), has_offline=True)


def test_the_last_directory_is_not_given_up(tmp_path: Path) -> None:
    logs = started(tmp_path)
    first, second = logs.online
    opened = open_all(logs)
    assert {*logs.fail(first, StorageError("no"))} == {ATS[0], ATS[2]}
    assert not logs.last_has_failed
    assert logs.fail(second, StorageError("no")) == []
    assert logs.last_has_failed
    finish(logs, opened)
    assert (logs.online, logs.failed) == ([second], [first])


def test_a_directory_that_has_failed_is_not_said_to_be_clean(tmp_path: Path) -> None:
    logs, opened = fill(tmp_path)
    assert {*logs.fail(logs.online[1], StorageError("no"))} == {ATS[1], ATS[3]}
    finish(logs, opened)
    assert (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "b" / ".kafka_cleanshutdown").exists()


def test_a_twin_of_a_log_that_does_not_say_whose_it_is_ends_no_start(tmp_path: Path) -> None:
    """A move that a crash ended has left two, both flushed; damage has taken the name of one."""
    at = ATS[0]
    for name in "ab":
        log = tmp_path / name / str(at)
        log.mkdir(parents=True)
        (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {uuid_to_text(ID)}\n")
        (log / "leader-epoch-checkpoint").write_text("0\n0\n")
    (tmp_path / "b" / str(at) / "partition.metadata").write_text("version")
    logs = started(tmp_path)
    assert not logs.is_doubled(at, ID)
    assert placed(logs, at, is_new=False).directory_id == "a"


def left_behind(*, is_clean: bool) -> SimDisk:
    """Return the disk of a process that has deleted one of three logs, but not yet its files."""
    disk = SimDisk()
    logs = directories("", disk=disk, process="first")
    logs.start()
    opened = written(open_all(logs, ATS[:3]))
    for log in opened.values():
        log.flush()
    logs.confirm_registrations()
    doomed = opened.pop(ATS[0])
    logs.deletion(ATS[0], lambda: doomed)()
    if is_clean:
        for log in opened.values():
            log.close()
        logs.finish(opened, dict.fromkeys(opened, Offset(4)), 7, unclean=())
    disk.kill()
    return disk


def found(logs: LogDirectories) -> object:
    logs.remove_doomed()
    return (
        *(logs.clean_shutdown_epoch, logs.incarnations, logs.report()),
        [(sorted(one.unopened), one.checkpoints.high_watermark(ATS[1])) for one in logs.online],
    )


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("at_most", [1, 40])
def test_a_start_that_finds_no_room_is_repeated(is_clean: bool, at_most: int) -> None:
    undisturbed = directories("", disk=left_behind(is_clean=is_clean), process="second")
    undisturbed.start()
    expected = found(undisturbed)
    for first in count():
        disk = left_behind(is_clean=is_clean)
        refusing = Refusing(disk, first, at_most)
        logs = directories("", disk=disk, process="second")
        while True:
            try:
                logs.start()
                break
            except DiskExhausted:
                assert not logs.has_offline
        refusing.free()
        assert found(logs) == expected
        if not refusing.has_refused:
            break
    assert first > 4


def test_the_reserve_has_room_for_the_name_of_the_next_process() -> None:
    disk = left_behind(is_clean=False)
    for name in "ab":
        keep_reserve(disk, f"/{name}")
    disk.capacity_bytes = disk.bytes_used()
    logs = directories("", disk=disk, process="second")
    logs.start()
    assert logs.incarnations == dict.fromkeys("ab", ("first",))
    logs.confirm_registrations()
    registrations = Registrations(disk, "/a")
    registrations.begin(BrokerProcess(incarnation_id="third", boot_id="boot"))
    assert registrations.incarnations == ("second",)


A3, B1, C1 = Candidate("a", 3), Candidate("b", 1), Candidate("c", 1)
HELD_A, HELD_B = Candidate("a", 3, holds_log=True), Candidate("b", 1, holds_log=True)


@pytest.mark.parametrize(
    ("candidates", "assigned", "expected"),
    [
        ([A3, B1, C1], None, 1),  # the fewest logs; of two, the first
        ([A3], None, 0),
        ([HELD_A, B1], None, 0),  # it is there already
        ([HELD_A, B1], "b", 0),  # it is elsewhere than the metadata says
        ([A3, B1], "a", 0),  # as the metadata says
        ([HELD_A, HELD_B], "b", 1),
        ([HELD_A, HELD_B], None, NoPlace.AMBIGUOUS),
        ([HELD_A, HELD_B], "c", NoPlace.AMBIGUOUS),
        ([HELD_A, HELD_B, C1], "c", NoPlace.AMBIGUOUS),
        ([A3, B1], "gone", 1),  # all directories are there, and it is in none
        ([], None, NoPlace.NONE_ONLINE),
    ],
)
def test_a_log_is_where_it_is_or_where_the_fewest_are(
    candidates: list[Candidate], assigned: str | None, expected: int | NoPlace
) -> None:
    for is_new in (False, True):
        assert place(candidates, assigned, has_offline=False, is_new=is_new) == expected


def test_no_log_is_made_beside_one_that_cannot_be_seen() -> None:
    """KAFKA-16234: the empty log would be taken for the replica."""
    for assigned in (None, "offline"):
        refused = place([A3, B1], assigned, has_offline=True, is_new=False)
        assert refused is NoPlace.MAY_BE_OFFLINE
    assert place([A3, B1], None, has_offline=True, is_new=True) == 1
    assert place([A3, B1], "a", has_offline=True, is_new=False) == 0
    assert place([HELD_A, B1], None, has_offline=True, is_new=False) == 0

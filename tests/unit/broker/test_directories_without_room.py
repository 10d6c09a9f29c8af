"""Log directories on a full disk have not failed: they are started again, with what they hold."""

from itertools import count

import pytest

from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.registrations import BrokerProcess, Registrations
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import DiskExhausted
from quorumlog.storage.io.reserve import keep_reserve
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.storage.refusing import Refusing

ATS = [TopicPartition("t", index) for index in range(3)]
ID = TopicId(b"\x07" * 16)
BATCH = encode_batch([Record(offset, 1, None, b"x") for offset in range(4)])
NAMES = ("a", "b")


def directories(disk: SimDisk, incarnation_id: str) -> LogDirectories:
    made = []
    for name in NAMES:
        made.append(LogDirectory(disk, f"/{name}", LogSettings()))
        made[-1].directory_id = name
    return LogDirectories(made, (), BrokerProcess(incarnation_id=incarnation_id, boot_id="boot"))


def left_behind(*, is_clean: bool) -> SimDisk:
    """Return the disk of a process that has deleted one of three logs, but not yet its files."""
    disk = SimDisk()
    logs = directories(disk, "first")
    logs.start()
    opened = {}
    for at in ATS:
        home = logs.place(at, ID, None, is_new=True)
        assert isinstance(home, LogDirectory)
        opened[at], _ = home.open(at, ID, {})
        opened[at].append_as_leader(BATCH, leader_epoch=0, wall_ms=0)
        opened[at].flush()
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
    undisturbed = directories(left_behind(is_clean=is_clean), "second")
    undisturbed.start()
    expected = found(undisturbed)
    for first in count():
        disk = left_behind(is_clean=is_clean)
        refusing = Refusing(disk, first, at_most)
        logs = directories(disk, "second")
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
    for name in NAMES:
        keep_reserve(disk, f"/{name}")
    disk.capacity_bytes = disk.bytes_used()
    logs = directories(disk, "second")
    logs.start()
    assert logs.incarnations == dict.fromkeys(NAMES, ("first",))
    logs.confirm_registrations()
    registrations = Registrations(disk, "/a")
    registrations.begin(BrokerProcess(incarnation_id="third", boot_id="boot"))
    assert registrations.incarnations == ("second",)

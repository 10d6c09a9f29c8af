"""A log directory names the process whose registration is in force, and its last clean stop."""

import json
from itertools import count
from pathlib import Path
from random import Random

import pytest

from quorumlog.broker.partitions.log.registrations import (
    FILE_NAME,
    INCARNATIONS_MAX,
    BrokerProcess,
    Registrations,
)
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from tests.support.broker.one_broker import one_broker

PATH = f"/logs/{FILE_NAME}"


def process(number: int, boot: str | None = "boot") -> BrokerProcess:
    return BrokerProcess(incarnation_id=f"process {number}", boot_id=boot)


def begun(disk: SimDisk, number: int, boot: str | None = "boot") -> Registrations:
    registrations = Registrations(disk, "/logs")
    registrations.begin(process(number, boot))
    return registrations


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/logs")
    begun(disk, 0).confirm()
    return disk


def test_a_process_finds_the_one_before_it_unless_the_directory_has_failed(disk: SimDisk) -> None:
    first = begun(disk, 1)
    assert first.incarnations == ("process 0",)
    first.confirm()
    assert begun(disk, 2).incarnations == ("process 1",)
    running = begun(disk, 3)
    running.note_failure()
    running.confirm()  # too late: a directory that has failed may lack records
    assert begun(disk, 4).incarnations == ()


def test_a_process_that_ends_before_its_logs_are_open_may_have_registered(disk: SimDisk) -> None:
    for number in range(1, 4):
        begun(disk, number)
    assert begun(disk, 4).incarnations == tuple(f"process {number}" for number in range(4))
    for number in range(5, INCARNATIONS_MAX + 1):  # too many are not remembered
        begun(disk, number)
    assert begun(disk, 99).incarnations == ()


def test_a_directory_without_the_file_may_lack_records() -> None:
    disk = SimDisk()
    disk.mkdir("/logs")
    assert begun(disk, 0).incarnations == ()
    assert begun(disk, 1).incarnations == ()  # nor does it once it has one, until logs are open


def put_back(disk: SimDisk, content: bytes) -> None:
    disk.unlink(PATH)
    file = disk.open(PATH, create=True)
    file.append([content])
    file.close()


def content_of(disk: SimDisk) -> bytes:
    file = disk.open(PATH)
    try:
        return bytes(file.pread(file.size(), 0))
    finally:
        file.close()


def test_a_copy_may_lack_records(disk: SimDisk) -> None:
    put_back(disk, content_of(disk))
    copied = begun(disk, 1, boot="later")
    assert (copied.incarnations, copied.may_have_lost_power) == ((), True)
    assert begun(disk, 2).incarnations == ()  # until its logs were open
    copied.confirm()
    assert begun(disk, 3).incarnations == ("process 1",)


def test_no_flipped_bit_names_another_process(disk: SimDisk) -> None:
    content, file = content_of(disk), disk.open(PATH)
    for place in range(len(content)):
        for bit in (1, 64):
            damaged = bytearray(content)
            damaged[place] ^= bit
            file.truncate(0)
            file.append([bytes(damaged)])
            found = Registrations(disk, "/logs")._read()
            assert found is None or found.incarnations in {(), ("process 0",)}
    file.close()


@pytest.mark.parametrize(
    ("before", "now", "may_have"),
    [("a", "a", False), ("a", "b", True), ("a", None, True), (None, "a", True)],
)
def test_a_system_that_started_anew_explains_a_damaged_end(
    before: str | None, now: str | None, may_have: bool
) -> None:
    disk = SimDisk()
    disk.mkdir("/logs")
    begun(disk, 0, before).confirm()
    assert begun(disk, 1, now).may_have_lost_power is may_have
    assert begun(disk, 2, now).may_have_lost_power is may_have  # as the logs were not open
    begun(disk, 3, now).confirm()
    assert begun(disk, 4, now).may_have_lost_power is (now is None)


class Died(BaseException):
    """Not an Exception: a process that is gone handles nothing."""


@pytest.mark.parametrize("loses_power", [False, True])
def test_whenever_a_process_ends_the_one_that_may_be_registered_is_named(loses_power: bool) -> None:
    for step in count():
        disk = SimDisk()
        disk.mkdir("/logs")
        begun(disk, 0).confirm()
        left = step

        def die(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Died

        disk.on_operation = die
        may_be_registered = {"process 0"}
        try:
            registrations = begun(disk, 1)
            may_be_registered = {"process 0", "process 1"}
            registrations.confirm()
            may_be_registered = {"process 1"}
        except Died:
            pass
        disk.on_operation = None
        if loses_power:
            disk.crash(Random(step))
        named = {*begun(disk, 2).incarnations}
        assert may_be_registered & {"process 0"} <= named or named == {"process 1"}
        assert "process 1" in named or "process 1" not in may_be_registered
        if left >= 0:
            assert named == {"process 1"}
            assert json.loads(content_of(disk))["incarnations"] == ["process 1", "process 2"]
            return


async def test_a_process_that_never_registered_leaves_the_mark_as_it_was(tmp_path: Path) -> None:
    """For the next registration (KIP-966)."""
    for found, registers in ((None, True), (5, False), (5, False)):
        async with one_broker(tmp_path) as replicas:
            assert replicas.clean_shutdown_epoch == found
            if registers:
                replicas.registered(5)

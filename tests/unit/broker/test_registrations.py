"""Log directories name the process that is registered; one of two that fails is given up alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from errno import EIO, ENOSPC
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.registrations import (
    FILE_NAME,
    INCARNATIONS_MAX,
    BrokerProcess,
    Registrations,
    _checksum,
)
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, ReplicaDirectory
from quorumlog.metadata_quorum.controller_requests import AssignReplicas, ReportReply
from quorumlog.metadata_quorum.image import BrokerImage, ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId, TopicPartition
from quorumlog.wire.io.security import PLAINTEXT
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import BATCH, TOPIC_ID, one_broker
from tests.support.broker.replica_calls import append_to
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image
from tests.support.waiting import until

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


def test_a_file_of_a_release_without_generations_is_compared_by_its_inode_number(
    disk: SimDisk,
) -> None:
    fields = json.loads(content_of(disk))
    del fields["generation"]
    fields["crc"] = _checksum({name: fields[name] for name in ("incarnations", "boot_id", "inode")})
    put_back(disk, json.dumps(fields).encode())
    assert begun(disk, 1).incarnations == ("process 0",)


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


ATS = [TopicPartition("orders", index) for index in range(4)]
ONE = BROKERS[0]
EVEN, ODD = ATS[::2], ATS[1::2]  # in the directories a and b


class Assignments:
    """A controller that only takes in where replicas are."""

    def __init__(self) -> None:
        self.told: list[ReplicaDirectory] = []
        self.refusals = 0
        self.heard = asyncio.Event()

    async def ask(self, request: object) -> ReportReply:
        assert isinstance(request, AssignReplicas)
        assert (request.broker_id, request.broker_epoch) == (ONE, ALL_ALIVE[ONE].broker_epoch)
        if self.refusals:
            self.refusals -= 1
            raise ControllerUnavailable("it is away")
        self.told += request.replicas
        self.heard.set()
        return ReportReply(error_code=ErrorCode.NONE)

    def known(self) -> dict[int, str]:
        return {one.partition: one.directory_id for one in self.told}


def shown(
    log_dirs: tuple[str, ...] = ("a", "b"), known: dict[int, str] | None = None
) -> ClusterImage:
    """Broker 1 leads all four; `known`: in which directories the metadata has them."""
    ours = replace(ALL_ALIVE[ONE], log_dirs=log_dirs)
    partitions = tuple(
        replace(
            image(1, 0, 0, (1,), replicas=(1,)),
            directories=((ONE, known[index]),) if known and index in known else (),
        )
        for index in range(4)
    )
    topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions=partitions)
    brokers: dict[BrokerId, BrokerImage] = {**ALL_ALIVE, ONE: ours}
    return ClusterImage(brokers=brokers, topics={"orders": topic}, topic_names={TOPIC_ID: "orders"})


@asynccontextmanager
async def running(
    tmp_path: Path,
    disk: FaultyDisk,
    controller: Assignments,
    names: str = "ab",
    *,
    known: dict[int, str] | None = None,
    refused: tuple[str, ...] = (),
) -> AsyncIterator[Replicas]:
    directories = [LogDirectory(disk, str(tmp_path / name), LogSettings()) for name in names]
    for name, directory in zip(names, directories, strict=True):
        directory.directory_id = name
    replicas = Replicas(
        broker_id=ONE,
        settings=BrokerSettings(),
        logs=LogDirectories(directories, refused),
        controller=cast(Any, controller),
        security=PLAINTEXT,
        disk_queue=HeldQueue(),
    )
    await replicas.start()
    replicas.registered(ALL_ALIVE[ONE].broker_epoch)
    replicas.publish(
        ClusterDelta(partitions=frozenset(ATS), brokers=frozenset(BROKERS)), shown(known=known)
    )
    try:
        yield replicas
    finally:
        disk.errors = {}
        await replicas.stop()


def codes(replicas: Replicas, ats: Sequence[TopicPartition]) -> set[ErrorCode]:
    answers = [append_to(replicas, at, BATCH, acks=1, timeout_ms=1000) for at in ats]
    return {answer.result().error_code for answer in answers}


async def test_logs_of_the_other_directory_go_on(tmp_path: Path) -> None:
    disk, controller = FaultyDisk(), Assignments()
    async with running(tmp_path, disk, controller) as replicas:
        assert codes(replicas, ATS) == {ErrorCode.NONE}
        disk.on, disk.errors = "/b/orders-1", {"append": EIO}
        assert codes(replicas, ODD) == {ErrorCode.KAFKA_STORAGE_ERROR}
        disk.errors = {}
        assert codes(replicas, ODD) == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert codes(replicas, EVEN) == {ErrorCode.NONE}
        assert replicas.may_lead.is_set()
        assert replicas.directory_failed.is_set()
        report = replicas.directory_report()
        assert (report.online, report.offline, report.has_offline) == (("a",), ("b",), True)
        described = await replicas.descriptions.log_directories(None)
        assert [(Path(one.path).name, one.error_code, len(one.replicas)) for one in described] == [
            ("a", ErrorCode.NONE, 2),
            ("b", ErrorCode.KAFKA_STORAGE_ERROR, 0),
        ]
    assert (tmp_path / "a" / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "b" / ".kafka_cleanshutdown").exists()


async def test_with_the_last_directory_the_broker_asks_to_be_fenced(tmp_path: Path) -> None:
    disk, controller = FaultyDisk(), Assignments()
    async with running(tmp_path, disk, controller) as replicas:
        for name, at in (("/b/", ODD[0]), ("/a/", EVEN[0])):
            disk.on, disk.errors = name, {"append": EIO}
            assert codes(replicas, [at]) == {ErrorCode.KAFKA_STORAGE_ERROR}
            disk.errors = {}
        assert replicas.directory_report().online == ("a",)
        assert not replicas.may_lead.is_set()
        assert not replicas.failure.done()


async def test_a_full_disk_is_no_failed_one(tmp_path: Path) -> None:
    disk, controller = FaultyDisk(), Assignments()
    async with running(tmp_path, disk, controller) as replicas:
        disk.on, disk.errors = "/b/", {"append": ENOSPC}
        assert codes(replicas, ODD) == {ErrorCode.KAFKA_STORAGE_ERROR}
        disk.errors = {}
        assert codes(replicas, ATS) == {ErrorCode.NONE}


async def test_a_directory_that_refuses_its_checkpoints_has_failed(tmp_path: Path) -> None:
    disk, controller = FaultyDisk(), Assignments()
    async with running(tmp_path, disk, controller) as replicas:
        (tmp_path / "b").rename(tmp_path / "away")
        (tmp_path / "b").write_text("no directory")
        files = replicas._logs.checkpoints
        with pytest.raises(StorageError, match="/b") as refused:
            files.write_recovery_points()
        replicas._replicas.note_refusal(refused.value)
        assert (tmp_path / "a" / "recovery-point-offset-checkpoint").exists()
        assert replicas.directory_report().offline == ("b",)


async def test_the_controller_is_told_where_each_replica_is(tmp_path: Path) -> None:
    controller = Assignments()
    async with running(tmp_path, FaultyDisk(), controller) as replicas:
        async with asyncio.timeout(10):
            while len(controller.known()) < len(ATS):
                await controller.heard.wait()
                controller.heard.clear()
        assert controller.known() == {0: "a", 1: "b", 2: "a", 3: "b"}
        controller.told.clear()
        replicas.publish(
            ClusterDelta(partitions=frozenset(ATS)), shown(known={0: "a", 1: "b", 2: "a", 3: "a"})
        )
        async with asyncio.timeout(10):
            await controller.heard.wait()
        assert controller.known() == {3: "b"}  # the others are known


async def test_a_log_that_may_be_in_a_lost_directory_is_not_made_anew(tmp_path: Path) -> None:
    controller = Assignments()
    where = {0: "a", 1: "b", 2: "a", 3: "b"}
    async with running(tmp_path, FaultyDisk(), controller, known=where) as replicas:
        assert codes(replicas, ATS) == {ErrorCode.NONE}
    lost = (str(tmp_path / "b"),)
    async with running(
        tmp_path, FaultyDisk(), controller, "a", known=where, refused=lost
    ) as replicas:
        assert codes(replicas, EVEN) == {ErrorCode.NONE}
        assert codes(replicas, ODD) == {ErrorCode.KAFKA_STORAGE_ERROR}
        assert not (tmp_path / "a" / "orders-1").exists()
        assert replicas.may_lead.is_set()


async def test_a_topic_that_is_made_again_has_its_logs_elsewhere(tmp_path: Path) -> None:
    disk, controller = FaultyDisk(), Assignments()
    async with running(tmp_path, disk, controller) as replicas:
        disk.on, disk.errors = "/b/", {"append": EIO}
        assert codes(replicas, ODD) == {ErrorCode.KAFKA_STORAGE_ERROR}
        disk.errors = {}
        again = shown(log_dirs=("a",))
        topic = replace(again.topics["orders"], topic_id=TopicId(b"j" * 16))
        again = replace(again, topics={"orders": topic}, topic_names={topic.topic_id: "orders"})
        delta = ClusterDelta(partitions=frozenset(ATS), deleted_topics={"orders": TOPIC_ID})
        replicas.publish(delta, again)
        assert codes(replicas, ATS) == {ErrorCode.NONE}
        assert (tmp_path / "a" / "orders-1").exists()


async def test_a_stray_that_finds_no_room_for_its_new_name_gets_it_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk, controller = FaultyDisk(), Assignments()
    stray = tmp_path / "b" / "old-0"
    stray.mkdir(parents=True)
    disk.on, disk.errors = "/b/old-0", {"rename": ENOSPC}
    async with running(tmp_path, disk, controller) as replicas:
        await until(lambda: "strays: cannot set aside in" in caplog.text)
        assert stray.exists()
        disk.errors = {}
        await until(lambda: not stray.exists())
        assert replicas.directory_report().offline == ()
        assert codes(replicas, ATS) == {ErrorCode.NONE}

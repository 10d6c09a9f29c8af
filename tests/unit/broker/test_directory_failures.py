"""A broker with two log directories, one of which fails: the other one goes on."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any, cast

import pytest

from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, ReplicaDirectory
from quorumlog.metadata_quorum.image import BrokerImage, ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId, TopicPartition
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import BATCH, TOPIC_ID
from tests.support.broker.replica_calls import append_to
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image
from tests.support.waiting import until

ATS = [TopicPartition("orders", index) for index in range(4)]
ONE = BROKERS[0]
EVEN, ODD = ATS[::2], ATS[1::2]  # in the directories a and b


class Assignments:
    """A controller that only takes in where replicas are."""

    def __init__(self) -> None:
        self.told: list[ReplicaDirectory] = []
        self.refusals = 0
        self.heard = asyncio.Event()

    async def report_logs(self, broker_epoch: int, reports: object) -> ErrorCode:
        raise AssertionError(f"logs are reported: {reports}")

    async def assign_replicas(
        self, broker_epoch: int, replicas: Sequence[ReplicaDirectory]
    ) -> ErrorCode:
        assert broker_epoch == ALL_ALIVE[ONE].broker_epoch
        if self.refusals:
            self.refusals -= 1
            raise ControllerUnavailable("it is away")
        self.told += replicas
        self.heard.set()
        return ErrorCode.NONE

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

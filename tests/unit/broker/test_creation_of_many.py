"""Topics of many partitions: created, found, deleted, changed by images while the loop goes on."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from errno import EIO
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker import replicas as replicas_module
from quorumlog.broker.partitions.core.pending_updates import PendingUpdates
from quorumlog.broker.partitions.log import log_names
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import append, one_broker, publish, start
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image
from tests.support.waiting import until

COUNT = 41
MANY = tuple(TopicPartition("many", index) for index in range(COUNT))
BATCH = encode_batch([Record(0, 1, None, b"x")])
MANY_ID, NEXT_ID = TopicId(b"m" * 16), TopicId(b"n" * 16)


def publish_many(replicas: Replicas, *, leader_id: int = 1, topic_id: TopicId = MANY_ID) -> None:
    partitions = tuple(image(leader_id, 0, 0, (1, 2), replicas=(1, 2)) for _ in MANY)
    topic = TopicImage(name="many", topic_id=topic_id, partitions=partitions)
    delta = ClusterDelta(brokers=frozenset(ALL_ALIVE), partitions=frozenset(MANY))
    replicas.publish(delta, ClusterImage(brokers=ALL_ALIVE, topics={"many": topic}))


def publish_nothing(replicas: Replicas) -> None:
    delta = ClusterDelta(deleted_topics={"many": MANY_ID})
    replicas.publish(delta, ClusterImage(brokers=ALL_ALIVE))


@asynccontextmanager
async def broker(directory: Path, disk: RealDisk | None = None) -> AsyncIterator[Replicas]:
    """Run a broker whose disk work is done in threads, as that of a node is."""
    replicas = await start(directory, disk=disk)
    try:
        await are_open(replicas)
        yield replicas
    finally:
        await replicas.stop()


async def are_open(replicas: Replicas) -> None:
    await until(lambda: not replicas._replicas.is_opening)


class BlockedDisk(RealDisk):
    """A disk whose operations on paths with `blocked` in them wait until released."""

    def __init__(self, blocked: str) -> None:
        super().__init__()
        self.blocked, self.has_begun, self.may_go_on = blocked, threading.Event(), threading.Event()

    def listdir(self, path: str) -> list[str]:
        self._wait(path)
        return super().listdir(path)

    def unlink(self, path: str) -> None:
        self._wait(path)
        super().unlink(path)

    def _wait(self, path: str) -> None:
        if self.blocked in path:
            self.has_begun.set()
            self.may_go_on.wait(20)


def write_to_all(replicas: Replicas) -> None:
    """Else there is nothing on the disk."""
    for at in MANY:
        replicas.drivers[at].log.append_as_leader(BATCH, leader_epoch=1, wall_ms=0)


async def make_all(directory: Path) -> None:
    async with broker(directory) as replicas:
        publish_many(replicas)
        await are_open(replicas)
        write_to_all(replicas)


def directories(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("many*"))


async def test_many_logs_are_made_with_first_records_and_found_again(tmp_path: Path) -> None:
    for _ in ("creates them", "finds nothing"):
        async with broker(tmp_path) as replicas:
            publish_many(replicas)
            await are_open(replicas)
            assert all(replicas.drivers[at].log.is_planned for at in MANY)
        assert directories(tmp_path) == []  # without records
    for number, _ in enumerate(("creates them", "finds them"), 1):
        async with broker(tmp_path) as replicas:
            publish_many(replicas)
            await are_open(replicas)
            drivers = [replicas.drivers[at] for at in MANY]
            assert all(driver.partition.state.is_leader for driver in drivers)
            write_to_all(replicas)
            assert directories(tmp_path) == sorted(map(str, MANY))
            assert {driver.log.log_end_offset for driver in drivers} == {number}


async def test_the_loop_and_other_partitions_go_on_while_a_log_is_opened(tmp_path: Path) -> None:
    await make_all(tmp_path)
    disk = BlockedDisk(str(MANY[-1]))
    async with broker(tmp_path, disk) as replicas:
        try:
            publish_many(replicas)
            await until(lambda: len(replicas.drivers) == len(MANY))  # all others, and `orders`
            result = append(replicas)
            assert result.error_code is ErrorCode.NONE
            assert replicas.drivers.get(MANY[-1]) is None
            refused = await replicas.list_offset(MANY[-1], -1)
            assert refused.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        finally:
            disk.may_go_on.set()
        await are_open(replicas)
        assert replicas.drivers.get(MANY[-1]) is not None


async def test_the_loop_and_other_partitions_go_on_while_files_are_removed(tmp_path: Path) -> None:
    disk = BlockedDisk("-delete/")
    async with broker(tmp_path, disk) as replicas:
        try:
            publish_many(replicas)
            await are_open(replicas)
            write_to_all(replicas)
            publish(replicas, image(1, 0, 1, (1,), replicas=(1,)))  # `many` is deleted
            replicas.publish(ClusterDelta(deleted_topics={"many": MANY_ID}), replicas.image)
            await until(disk.has_begun.is_set)
            assert append(replicas).error_code is ErrorCode.NONE
            assert all(replicas.drivers.get(at) is None for at in MANY)
            publish_many(replicas, topic_id=NEXT_ID)  # the names are free
            await are_open(replicas)
            write_to_all(replicas)
        finally:
            disk.may_go_on.set()
        await until(lambda: directories(tmp_path) == sorted(map(str, MANY)))


async def test_a_broker_may_lead_when_all_logs_of_its_image_are_open(tmp_path: Path) -> None:
    """Until then the broker asks to stay fenced: it would refuse what it is asked as the leader."""
    async with broker(tmp_path / "empty") as replicas:
        replicas.registered(ALL_ALIVE[replicas.broker_id].broker_epoch)
        publish_nothing(replicas)
        assert replicas.may_lead.is_set()  # at once
    async with broker(tmp_path) as replicas:
        publish_nothing(replicas)  # the image of a former process, and nothing to open
        replicas.registered(ALL_ALIVE[replicas.broker_id].broker_epoch + 1)
        publish_nothing(replicas)
        assert not replicas.may_lead.is_set()
        replicas.registered(ALL_ALIVE[replicas.broker_id].broker_epoch)
        publish_many(replicas)
        assert not replicas.may_lead.is_set()
        await replicas.may_lead.wait()
        assert all(replicas.drivers.get(at) is not None for at in MANY)
        publish_many(replicas, topic_id=NEXT_ID)
        assert replicas.may_lead.is_set()  # it stays so


async def test_a_log_is_opened_for_the_newest_image(tmp_path: Path) -> None:
    async with broker(tmp_path) as replicas:
        publish_many(replicas, leader_id=1)
        publish_many(replicas, leader_id=2)
        await are_open(replicas)
        drivers = [replicas.drivers.get(at) for at in MANY]
        assert not any(driver is None or driver.partition.state.is_leader for driver in drivers)


@pytest.mark.parametrize("is_there", [False, True])
async def test_logs_deleted_before_opening_leave_nothing(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        await make_all(tmp_path)
    async with broker(tmp_path) as replicas:
        publish_many(replicas)
        publish_nothing(replicas)
        await until(lambda: not (replicas._replicas.is_opening or directories(tmp_path)))
        assert not any(replicas.drivers.get(at) for at in MANY)


@pytest.mark.parametrize("second_id", [MANY_ID, NEXT_ID])
async def test_a_log_is_not_opened_by_two_at_once(tmp_path: Path, second_id: TopicId) -> None:
    """It would be checked, and cut, by two threads."""
    await make_all(tmp_path)
    disk = BlockedDisk(str(MANY[-1]))
    async with broker(tmp_path, disk) as replicas:
        try:
            publish_many(replicas)
            await until(disk.has_begun.is_set)
            publish_many(replicas, topic_id=second_id)
            assert replicas.drivers.get(MANY[-1]) is None
        finally:
            disk.may_go_on.set()
        await are_open(replicas)
        drivers = [replicas.drivers.get(at) for at in MANY]
        assert {driver and driver.topic_id for driver in drivers} == {second_id}
    assert not list(tmp_path.glob("*-stray"))


async def test_nothing_is_a_stray_that_is_assigned(tmp_path: Path) -> None:
    await make_all(tmp_path)
    (tmp_path / "gone-0").mkdir()
    async with broker(tmp_path) as replicas:
        replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        publish_many(replicas)
        await are_open(replicas)
        assert all(replicas.drivers.get(at) for at in MANY)
        await until(lambda: len(list(tmp_path.glob("gone-0.*-stray"))) == 1)
    assert directories(tmp_path) == sorted(map(str, MANY))


async def test_a_log_that_is_opened_during_a_stop_is_closed_cleanly(tmp_path: Path) -> None:
    await make_all(tmp_path)
    disk = BlockedDisk(str(MANY[-1]))
    replicas = await start(tmp_path, disk=disk)
    publish_many(replicas)
    await until(disk.has_begun.is_set)
    stopping = asyncio.create_task(replicas.stop())
    await asyncio.sleep(0)
    disk.may_go_on.set()
    await stopping
    assert replicas.drivers.get(MANY[-1]) is None
    assert (tmp_path / ".kafka_cleanshutdown").exists()


async def test_a_disk_that_makes_no_directory_fences_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first record: before it nothing is asked of the disk."""
    async with broker(tmp_path) as replicas:
        replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        publish_nothing(replicas)

        def refuse(*args: object, **options: object) -> None:
            raise OSError(EIO, "input/output error")

        monkeypatch.setattr(log_names, "write_partition_metadata", refuse)
        publish(replicas, image(1, 0, 1, (1,), replicas=(1,)))
        await are_open(replicas)
        assert replicas.may_lead.is_set()
        assert append(replicas).error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not replicas.may_lead.is_set()
        assert not replicas.failure.done()
        assert append(replicas).error_code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_the_collector_need_not_visit_logs_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full collection of all that 10,000 logs hold would hold the event loop up."""
    frozen_at: list[int] = []
    monkeypatch.setattr(replicas_module, "LOGS_PER_FREEZE", 2)
    async with broker(tmp_path) as replicas:
        monkeypatch.setattr(gc, "freeze", lambda: frozen_at.append(len(replicas.drivers)))
        opened_before = len(replicas.drivers)
        publish_many(replicas)
        await are_open(replicas)
        opened = range(opened_before + 1, len(replicas.drivers) + 1)
        assert frozen_at == [count for count in opened if count % 2 == 0]
        assert frozen_at != []


NEWS_COUNT = 23
Settled = Callable[[], Awaitable[None]]
NEWS = tuple(TopicPartition("many", index) for index in range(NEWS_COUNT))
NEWS_ID = TopicId(b"m" * 16)


def image_of_many(leader_id: int, leader_epoch: int) -> ClusterImage:
    one = image(leader_id, leader_epoch, leader_epoch, (1, 2), replicas=(1, 2))
    topic = TopicImage(name="many", topic_id=NEWS_ID, partitions=(one,) * NEWS_COUNT)
    return ClusterImage(brokers=ALL_ALIVE, topics={"many": topic})


def test_ten_times_as_many_replicas_make_ten_times_as_many_slices_not_larger_ones() -> None:
    for count in (2_000, 20_000):
        news = PendingUpdates()
        news.note(TopicPartition("t", index) for index in range(count))
        news.note_brokers(TopicPartition("t", index) for index in range(count))
        sizes = []
        while len(news):
            slice_ = news.take()
            sizes.append(len(slice_.partitions) + len(slice_.of_brokers))
        assert sizes == [PendingUpdates.at_once] * (2 * count // PendingUpdates.at_once)


def test_what_is_noted_twice_is_taken_once() -> None:
    news = PendingUpdates()
    news.note(NEWS)
    news.note(reversed(NEWS))
    news.note_brokers(NEWS[:2])
    news.note_brokers(NEWS[:2])
    assert news.take() == ([*NEWS], [*NEWS[:2]])
    assert news.take() == ([], [])


@asynccontextmanager
async def few_at_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Replicas, Settled]]:
    """Run a broker that takes five pieces of news in a turn; with the wait until it has all."""
    monkeypatch.setattr(PendingUpdates, "at_once", 5)
    replicas = await start(directory, disk_queue=HeldQueue())
    yield replicas, lambda: until(lambda: not replicas._replicas.has_pending_updates)
    await replicas.stop()


async def test_replicas_hear_of_an_image_in_several_turns_and_then_of_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[TopicPartition] = []
    feed = PartitionDriver.feed

    def noted(self: PartitionDriver, now_ms: int, event: Any) -> None:
        fed.append(self.topic_partition)
        feed(self, now_ms, event)

    async with few_at_once(tmp_path, monkeypatch) as (replicas, settled):
        delta = ClusterDelta(partitions=frozenset(NEWS))
        replicas.publish(delta, image_of_many(1, 0))
        assert replicas._replicas.is_opening  # although nothing is being opened yet of most
        await settled()
        drivers = replicas.drivers
        assert all(drivers[at].partition.state.is_leader for at in NEWS)
        monkeypatch.setattr(PartitionDriver, "feed", noted)
        replicas.publish(delta, image_of_many(2, 1))
        assert fed == [*NEWS[:5]]
        replicas.publish(ClusterDelta(), image_of_many(1, 2))  # its delta names none of them
        await settled()
        epochs = [drivers[at].partition.state.leader_epoch for at in NEWS]
        assert epochs == [1] * 5 + [2] * (NEWS_COUNT - 5)
        assert len(fed) == NEWS_COUNT


async def test_a_change_of_brokers_reaches_all_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with few_at_once(tmp_path, monkeypatch) as (replicas, settled):
        replicas.publish(ClusterDelta(partitions=frozenset(NEWS)), image_of_many(1, 0))
        await settled()
        alone = {one: broker for one, broker in ALL_ALIVE.items() if one == 1}
        newest = ClusterImage(brokers=alone, topics=image_of_many(1, 0).topics)
        replicas.publish(ClusterDelta(brokers=frozenset(ALL_ALIVE)), newest)
        await settled()
        assert all(driver.partition.state.brokers == alone for driver in replicas.drivers.values())


async def test_no_log_is_set_aside_while_an_image_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not told yet may be what the log belongs to."""
    async with few_at_once(tmp_path, monkeypatch) as (replicas, settled):
        asked: list[bool] = []
        ours = replicas._replicas
        monkeypatch.setattr(
            ours, "set_aside_strays", lambda: asked.append(ours.has_pending_updates)
        )
        monkeypatch.setattr(replicas, "broker_epoch", ALL_ALIVE[replicas.broker_id].broker_epoch)
        delta = ClusterDelta(partitions=frozenset(NEWS), brokers=frozenset(ALL_ALIVE))
        replicas.publish(delta, image_of_many(1, 0))
        await settled()
        assert asked == [False]


@pytest.mark.jumping_time
@pytest.mark.parametrize("is_registered", [True, False])
async def test_an_open_log_is_followed_up_before_all_are_open(
    tmp_path: Path, is_registered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once while the broker leads; its first logs wait for each other."""
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue) as replicas:
        if is_registered:
            replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
            publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))
        assert replicas.may_lead.is_set() == is_registered
        queue.is_held = True
        publish_many(replicas)
        noted: list[TopicPartition] = []
        monkeypatch.setattr(replicas._directories, "note", noted.extend)
        try:
            opened, open_first = queue.held.popleft()
            open_first()
            await asyncio.sleep(0.1)
            assert noted == ([opened] if is_registered else [])
            await asyncio.sleep(11)
            assert noted == [opened]
        finally:
            queue.release()
        assert {*noted} == {*MANY}

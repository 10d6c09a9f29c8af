"""How an image reaches many replicas: slice by slice, and each hears the newest."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.partitions.core.untold_news import UntoldNews
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import start
from tests.support.broker.replicas import ALL_ALIVE, image
from tests.support.waiting import until

COUNT = 23
Settled = Callable[[], Awaitable[None]]
MANY = tuple(TopicPartition("many", index) for index in range(COUNT))
MANY_ID = TopicId(b"m" * 16)


def image_of_many(leader_id: int, leader_epoch: int) -> ClusterImage:
    one = image(leader_id, leader_epoch, leader_epoch, (1, 2), replicas=(1, 2))
    topic = TopicImage(name="many", topic_id=MANY_ID, partitions=(one,) * COUNT)
    return ClusterImage(brokers=ALL_ALIVE, topics={"many": topic})


def test_ten_times_as_many_replicas_make_ten_times_as_many_slices_not_larger_ones() -> None:
    for count in (2_000, 20_000):
        news = UntoldNews()
        news.note(TopicPartition("t", index) for index in range(count))
        news.note_brokers(TopicPartition("t", index) for index in range(count))
        sizes = []
        while len(news):
            slice_ = news.take()
            sizes.append(len(slice_.partitions) + len(slice_.of_brokers))
        assert sizes == [UntoldNews.at_once] * (2 * count // UntoldNews.at_once)


def test_what_is_noted_twice_is_taken_once() -> None:
    news = UntoldNews()
    news.note(MANY)
    news.note(reversed(MANY))
    news.note_brokers(MANY[:2])
    news.note_brokers(MANY[:2])
    assert news.take() == ([*MANY], [*MANY[:2]])
    assert news.take() == ([], [])


@asynccontextmanager
async def few_at_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Replicas, Settled]]:
    """Run a broker that takes five pieces of news in a turn; with the wait until it has all."""
    monkeypatch.setattr(UntoldNews, "at_once", 5)
    replicas = await start(directory, disk_queue=HeldQueue())
    yield replicas, lambda: until(lambda: not replicas._replicas.has_untold)
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
        delta = ClusterDelta(partitions=frozenset(MANY))
        replicas.publish(delta, image_of_many(1, 0))
        assert replicas._replicas.is_opening  # although nothing is being opened yet of most
        await settled()
        drivers = replicas.drivers
        assert all(drivers[at].partition.state.is_leader for at in MANY)
        monkeypatch.setattr(PartitionDriver, "feed", noted)
        replicas.publish(delta, image_of_many(2, 1))
        assert fed == [*MANY[:5]]
        replicas.publish(ClusterDelta(), image_of_many(1, 2))  # its delta names none of them
        await settled()
        epochs = [drivers[at].partition.state.leader_epoch for at in MANY]
        assert epochs == [1] * 5 + [2] * (COUNT - 5)
        assert len(fed) == COUNT


async def test_a_change_of_brokers_reaches_all_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with few_at_once(tmp_path, monkeypatch) as (replicas, settled):
        replicas.publish(ClusterDelta(partitions=frozenset(MANY)), image_of_many(1, 0))
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
        monkeypatch.setattr(ours, "set_aside_strays", lambda: asked.append(ours.has_untold))
        monkeypatch.setattr(replicas, "broker_epoch", ALL_ALIVE[replicas.broker_id].broker_epoch)
        delta = ClusterDelta(partitions=frozenset(MANY), brokers=frozenset(ALL_ALIVE))
        replicas.publish(delta, image_of_many(1, 0))
        await settled()
        assert asked == [False]

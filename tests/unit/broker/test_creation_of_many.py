"""Topics of many partitions: created, found at a start and deleted a few logs at a time."""

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.replica_set import OPENED_AT_ONCE
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from tests.support.broker.one_broker import AT, run
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image

COUNT = 5 * OPENED_AT_ONCE + 1
MANY = tuple(TopicPartition("many", index) for index in range(COUNT))
MANY_ID, NEXT_ID = TopicId(b"m" * 16), TopicId(b"n" * 16)


def publish_many(replicas: Replicas, *, leader_id: int = 1, topic_id: TopicId = MANY_ID) -> None:
    partitions = tuple(image(leader_id, 0, 0, (1, 2), replicas=(1, 2)) for _ in MANY)
    topic = TopicImage(name="many", topic_id=topic_id, partitions=partitions)
    delta = ClusterDelta(brokers=frozenset(ALL_ALIVE), partitions=frozenset(MANY))
    replicas.publish(delta, ClusterImage(brokers=ALL_ALIVE, topics={"many": topic}))


def publish_nothing(replicas: Replicas) -> None:
    delta = ClusterDelta(deleted_topics={"many": MANY_ID})
    replicas.publish(delta, ClusterImage(brokers=ALL_ALIVE))


async def steps_until(holds: Callable[[], bool], progress: Callable[[], int]) -> list[int]:
    """Return how far it was at each turn of the event loop: others had their turn as often."""
    seen = [progress()]
    while not holds():
        await asyncio.sleep(0)
        seen.append(progress())
    return seen


async def until_open(replicas: Replicas) -> list[int]:
    return await steps_until(
        lambda: not replicas._replicas.is_opening, lambda: len(replicas._drivers)
    )


def largest_step(seen: list[int]) -> int:
    return max(abs(later - earlier) for earlier, later in pairwise(seen))


def directories(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("many*"))


def test_many_logs_are_created_and_found_again_a_few_at_a_time(tmp_path: Path) -> None:
    async def story(replicas: Replicas) -> None:
        publish_many(replicas)
        assert largest_step(await until_open(replicas)) <= OPENED_AT_ONCE
        drivers = [replicas.driver(at) for at in MANY]
        assert all(driver is not None and driver.partition.state.is_leader for driver in drivers)
        assert directories(tmp_path) == sorted(map(str, MANY))

    run(tmp_path, story)  # creates them
    run(tmp_path, story)  # finds them


def test_the_logs_count_as_open_when_all_are_that_our_registration_gives_us(
    tmp_path: Path,
) -> None:
    """Until then the broker asks to stay fenced: it would refuse what it is asked as the leader."""

    async def story(replicas: Replicas) -> None:
        publish_nothing(replicas)  # the image of a former process, and nothing to open
        replicas.registered(ALL_ALIVE[replicas.broker_id].broker_epoch + 1)
        publish_nothing(replicas)
        assert not replicas.logs_open.is_set()
        replicas.registered(ALL_ALIVE[replicas.broker_id].broker_epoch)
        publish_many(replicas)
        while not replicas.logs_open.is_set():
            assert replicas._replicas.is_opening
            await asyncio.sleep(0)
        assert all(replicas.driver(at) is not None for at in MANY)
        publish_many(replicas, topic_id=NEXT_ID)
        assert replicas.logs_open.is_set()  # it stays so

    run(tmp_path, story)


def test_a_broker_with_few_logs_or_none_has_them_open_at_once(tmp_path: Path) -> None:
    async def story(replicas: Replicas) -> None:
        replicas.registered(ALL_ALIVE[replicas.broker_id].broker_epoch)
        publish_nothing(replicas)
        assert replicas.logs_open.is_set()

    run(tmp_path, story)


def test_many_logs_are_removed_a_few_at_a_time(tmp_path: Path) -> None:
    async def story(replicas: Replicas) -> None:
        publish_many(replicas)
        await until_open(replicas)
        publish_nothing(replicas)
        assert all(replicas.driver(at) is None for at in MANY)  # the names are free at once
        seen = await steps_until(
            lambda: not replicas._logs.is_removing, lambda: len(directories(tmp_path))
        )
        assert largest_step(seen) <= OPENED_AT_ONCE
        assert not directories(tmp_path)

    run(tmp_path, story)


def test_a_log_is_opened_for_the_newest_image(tmp_path: Path) -> None:
    async def story(replicas: Replicas) -> None:
        publish_many(replicas, leader_id=1)
        publish_many(replicas, leader_id=2)
        await until_open(replicas)
        drivers = [replicas.driver(at) for at in MANY]
        assert not any(driver is None or driver.partition.state.is_leader for driver in drivers)

    run(tmp_path, story)


@pytest.mark.parametrize("is_there", [False, True])
def test_what_is_deleted_before_its_turn_leaves_nothing(tmp_path: Path, is_there: bool) -> None:
    async def create(replicas: Replicas) -> None:
        publish_many(replicas)
        await until_open(replicas)

    async def story(replicas: Replicas) -> None:
        publish_many(replicas)
        publish_nothing(replicas)
        await steps_until(
            lambda: not (replicas._replicas.is_opening or replicas._logs.is_removing), lambda: 0
        )
        assert not any(replicas.driver(at) for at in MANY)
        assert not directories(tmp_path)

    if is_there:
        run(tmp_path, create)
    run(tmp_path, story)


@pytest.mark.parametrize("second_id", [MANY_ID, NEXT_ID])
def test_nobody_opens_a_log_whose_directory_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second_id: TopicId
) -> None:
    """Without its partition.metadata it would be set aside under the hands of who makes it."""
    made, may_go_on, make = threading.Event(), threading.Event(), LogDirectory._make

    def late_make(logs: LogDirectory, path: str, topic_id: TopicId) -> None:
        if path.endswith(str(MANY[-1])):
            logs._disk.mkdir(path)
            made.set()
            may_go_on.wait(10)
        make(logs, path, topic_id)

    async def story(replicas: Replicas) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(LogDirectory, "_make", late_make)
            publish_many(replicas)
            while not made.is_set():
                await asyncio.sleep(0)
            publish_many(replicas, topic_id=second_id)
            assert replicas.driver(MANY[-1]) is None
            may_go_on.set()
            await until_open(replicas)
        for at in MANY:
            driver = replicas.driver(at)
            assert driver is not None
            assert driver.topic_id == second_id
        await steps_until(lambda: not replicas._logs.is_removing, lambda: 0)

    run(tmp_path, story)
    strays = [name for name in directories(tmp_path) if name.endswith("-stray")]
    assert len(strays) == (0 if second_id == MANY_ID else 1)
    assert not list(tmp_path.glob("*unknown-stray"))


def test_nothing_is_a_stray_before_all_is_open(tmp_path: Path) -> None:
    async def create(replicas: Replicas) -> None:
        publish_many(replicas)
        await until_open(replicas)

    async def story(replicas: Replicas) -> None:
        replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
        publish_many(replicas)
        await until_open(replicas)
        assert all(replicas.driver(at) for at in MANY)

    run(tmp_path, create)
    (tmp_path / "gone-0").mkdir()
    run(tmp_path, story)
    assert directories(tmp_path) == sorted(map(str, MANY))
    assert len(list(tmp_path.glob("gone-0.*-stray"))) == 1


def test_a_disk_that_makes_no_directory_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(replicas: Replicas) -> None:
        def refuse(*args: object) -> None:
            raise OSError("no room")

        monkeypatch.setattr(LogDirectory, "_make", refuse)
        publish_many(replicas)
        with pytest.raises(StorageError, match=r"cannot make .*many-0: no room"):
            await asyncio.shield(replicas.failure)
        assert replicas.driver(AT) is not None

    run(tmp_path, story)

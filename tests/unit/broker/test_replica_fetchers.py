"""How a broker shares the partitions that it follows among fetchers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.broker.following.io import replica_fetchers
from quorumlog.broker.following.io.replica_fetchers import ReplicaFetchers
from quorumlog.broker.following.log.followed_partition import FollowedPartition
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.identifiers import BrokerId, Epoch

LANE = 3


class FakeFetcher:
    """Notes what it is to follow_new."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.followed: list[PartitionDriver] = []
        self.sets = 0
        self.touched: list[PartitionDriver] = []
        self.is_stopped = False

    def set_followed(self, followed: Any) -> None:
        self.sets += 1
        self.followed = [one.driver for one in cast("list[FollowedPartition]", list(followed))]

    def touch(self, driver: PartitionDriver) -> None:
        self.touched.append(driver)

    async def stop(self) -> None:
        self.is_stopped = True


class Fetchers:
    """The fetchers of a broker, in lanes of three; leaders 2 and 3 are at known addresses."""

    def __init__(self) -> None:
        self.made: list[FakeFetcher] = []
        self.fetchers = ReplicaFetchers(cast(Any, self.make), {})
        brokers = {
            BrokerId(leader): SimpleNamespace(broker_id=leader, host="localhost", port=leader)
            for leader in (2, 3)
        }
        self.image = cast(ClusterImage, SimpleNamespace(brokers=brokers))

    def make(self, address: tuple[str, int]) -> FakeFetcher:
        self.made.append(FakeFetcher(address))
        return self.made[-1]


class Driver:
    """As much of a replica as is looked at: itself."""


def follow_new(fetchers: ReplicaFetchers, leader: int, count: int) -> list[PartitionDriver]:
    drivers = [cast(PartitionDriver, Driver()) for _ in range(count)]
    for driver in drivers:
        fetchers.follow(driver, BrokerId(leader), Epoch(0))
    return drivers


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Fetchers:
    monkeypatch.setattr(replica_fetchers, "LANE_PARTITIONS", LANE)
    return Fetchers()


async def test_a_new_partition_disturbs_only_the_lane_that_gets_it(given: Fetchers) -> None:
    old = follow_new(given.fetchers, 2, 2 * LANE)
    given.fetchers.publish(given.image)
    assert [fetcher.followed for fetcher in given.made] == [old[:LANE], old[LANE:]]
    [new] = follow_new(given.fetchers, 2, 1)
    [other] = follow_new(given.fetchers, 3, 1)
    given.fetchers.publish(given.image)
    assert [fetcher.followed for fetcher in given.made[2:]] == [[new], [other]]
    assert [fetcher.sets for fetcher in given.made] == [1, 1, 1, 1]
    given.fetchers.follow(old[0], BrokerId(2), Epoch(1))  # it keeps its lane
    given.fetchers.publish(given.image)
    assert [fetcher.sets for fetcher in given.made] == [2, 1, 1, 1]


async def test_a_partition_that_goes_makes_room_in_its_lane_and_the_last_one_ends_it(
    given: Fetchers,
) -> None:
    old = follow_new(given.fetchers, 2, 2 * LANE)
    given.fetchers.publish(given.image)
    given.fetchers.unfollow(old[0])
    [new] = follow_new(given.fetchers, 2, 1)
    given.fetchers.publish(given.image)
    assert [fetcher.followed for fetcher in given.made] == [[*old[1:LANE], new], old[LANE:]]
    given.fetchers.touch(new)
    assert [fetcher.touched for fetcher in given.made] == [[new], []]
    given.fetchers.unfollow(new)
    for driver in old[1:LANE]:
        given.fetchers.unfollow(driver)
    given.fetchers.publish(given.image)
    assert len(given.fetchers._fetchers) == 1  # a lane that is empty fetches no more
    await given.fetchers.stop()
    assert [fetcher.is_stopped for fetcher in given.made] == [True, True]
    assert len(given.fetchers._fetchers) == 0

"""Many groups on one coordinator, and many consumers in one group: three real nodes."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from quorumlog import Consumer, LocalCluster
from quorumlog.client import TopicPartition
from quorumlog.client.settings import GroupProtocol
from tests.support.groups.raw_members import (
    ONE_COORDINATOR,
    WIDE,
    Told,
    connections,
    coordinator_of,
    create_topics,
    grouped,
    is_settled,
    polling,
    running,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("many_groups")]
GROUPS, MEMBERS, JOINERS = 20, 5, 30
PATIENCE_S = 120
INTERVAL_S = 0.5
CONFIG = {
    **ONE_COORDINATOR,
    "group.initial.rebalance.delay.ms": "500",
    "broker.session.timeout.ms": "30000",  # the coordinator stays, however busy the machine is
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("groups") / "cluster", config=CONFIG) as cluster:
        asyncio.run(create_topics(cluster.bootstrap, shared=MEMBERS, wide=JOINERS))
        yield cluster.bootstrap


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_many_groups_are_stable_on_one_coordinator(
    bootstrap: str, protocol: GroupProtocol
) -> None:
    names = [f"{protocol}-{index}" for index in range(GROUPS)]
    place, told = await coordinator_of(bootstrap, names), Told()
    count = GROUPS * MEMBERS if protocol == "classic" else 4
    async with connections(place, count) as opened:
        groups = grouped(protocol, names, MEMBERS, opened, told)
        members = [member for group in groups for member in group]

        def are_settled() -> bool:
            return all(is_settled(group, MEMBERS) for group in groups)

        async with running(members, INTERVAL_S):
            await until(are_settled, within_s=PATIENCE_S)
            generations = [member.generation for member in members]
            told.errors.clear()
            told.waits_ms.clear()
            await until(lambda: len(told.waits_ms) >= 3 * len(members), within_s=PATIENCE_S)
            assert not told.errors
            assert are_settled()
            assert [member.generation for member in members] == generations


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_many_consumers_that_join_one_group_share_its_partitions(
    bootstrap: str, protocol: GroupProtocol
) -> None:
    async with polling(bootstrap, protocol, JOINERS) as consumers:
        await until(lambda: shares(consumers) == [1] * JOINERS, within_s=PATIENCE_S)
        held = {one for consumer in consumers for one in consumer.assignment()}
        assert held == {TopicPartition(WIDE, index) for index in range(JOINERS)}


def shares(consumers: Sequence[Consumer]) -> list[int]:
    return [len(consumer.assignment()) for consumer in consumers]

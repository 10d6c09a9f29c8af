"""Many groups on one coordinator, and many consumers in one group: three real nodes."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

import pytest

from quorumlog import Admin, Consumer, LocalCluster
from quorumlog.client import NewTopic, TopicPartition
from quorumlog.client.settings import GroupProtocol
from tests.support.groups.raw_members import (
    ClassicMember,
    ConsumerMember,
    Member,
    Told,
    connections,
    coordinator_of,
    is_settled,
    running,
)
from tests.support.waiting import until

pytestmark = pytest.mark.integration
GROUPS, MEMBERS, JOINERS = 20, 5, 30
PATIENCE_S = 120
INTERVAL_S = 0.5
CONFIG = {
    "offsets.topic.num.partitions": "1",  # one coordinator has them all
    "group.initial.rebalance.delay.ms": "500",
    "broker.session.timeout.ms": "30000",  # the coordinator stays, however busy the machine is
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("groups") / "cluster", config=CONFIG) as cluster:
        asyncio.run(create_topics(cluster.bootstrap))
        yield cluster.bootstrap


async def create_topics(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic("shared", MEMBERS, 3), NewTopic("wide", JOINERS, 3)])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_many_groups_are_stable_on_one_coordinator(
    bootstrap: str, protocol: GroupProtocol
) -> None:
    names = [f"{protocol}-{index}" for index in range(GROUPS)]
    place, told = await coordinator_of(bootstrap, names), Told()
    count = GROUPS * MEMBERS if protocol == "classic" else 4
    async with connections(place, count) as opened:

        def member(number: int) -> Member:
            connection, name = opened[number % count], names[number // MEMBERS]
            if protocol == "classic":
                return ClassicMember(connection, name, told)
            return ConsumerMember(connection, name, told, ["shared"])

        members = [member(number) for number in range(GROUPS * MEMBERS)]
        groups = [members[at : at + MEMBERS] for at in range(0, len(members), MEMBERS)]

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
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(
                Consumer(bootstrap, group_id=f"wide-{protocol}", group_protocol=protocol)
            )
            for _ in range(JOINERS)
        ]

        async def poll(consumer: Consumer) -> None:
            consumer.subscribe(["wide"])
            while True:
                await consumer.poll(200)

        polling = [asyncio.ensure_future(poll(consumer)) for consumer in consumers]
        try:
            await until(lambda: shares(consumers) == [1] * JOINERS, within_s=PATIENCE_S)
            held = {one for consumer in consumers for one in consumer.assignment()}
            assert held == {TopicPartition("wide", index) for index in range(JOINERS)}
        finally:
            for task in polling:
                task.cancel()
            await asyncio.gather(*polling, return_exceptions=True)


def shares(consumers: Sequence[Consumer]) -> list[int]:
    return [len(consumer.assignment()) for consumer in consumers]

"""ACLs on three real brokers: a denial is in force on all of them, and followers go on."""

import asyncio

import pytest

from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import Acl, AclFilter, ErrorCode, KafkaError, NewTopic
from quorumlog.settings.authorization import STANDARD_AUTHORIZER

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("authorization")]
OPEN_AT_FIRST = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}
DENIAL = Acl(
    principal="User:ANONYMOUS",
    permission="deny",
    operation="write",
    resource_type="topic",
    resource_name="orders",
)


async def written(producer: Producer, topic: str, partition: int) -> ErrorCode:
    try:
        await producer.send_and_wait(topic, b"value", partition=partition)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def all_answer(producer: Producer, expected: ErrorCode) -> None:
    """Wait until the leader of each partition answers a write to `orders` with this code."""
    async with asyncio.timeout(60):
        while {await written(producer, "orders", index) for index in range(3)} != {expected}:
            await asyncio.sleep(0.05)


async def test_a_denial_is_in_force_on_every_broker_until_it_is_deleted() -> None:
    with LocalCluster(nodes=3, port=0, config=OPEN_AT_FIRST) as cluster:
        async with (
            Admin(cluster.bootstrap) as admin,
            Producer(cluster.bootstrap, acks="all", enable_idempotence=False) as producer,
            Consumer(cluster.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer,
        ):
            topics = [
                NewTopic(name, num_partitions=3, replication_factor=3)
                for name in ("orders", "others")
            ]
            await admin.create_topics(topics)
            await all_answer(producer, ErrorCode.NONE)
            await admin.create_acls([DENIAL])
            await all_answer(producer, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            assert await written(producer, "others", 0) is ErrorCode.NONE
            await admin.delete_acls([AclFilter(resource_name="orders")])
            await all_answer(producer, ErrorCode.NONE)
            consumer.subscribe(["others"])
            async with asyncio.timeout(60):
                while not await consumer.poll(500):
                    pass

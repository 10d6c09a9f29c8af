"""The cluster is shared by the tests of a session; each test has a topic of its own."""

import asyncio

from client import OrderDesk

from quorumlog import Consumer, LocalCluster, Producer
from quorumlog.client import TopicPartition
from quorumlog.client.sync import SyncConsumer
from quorumlog.testing import FreshTopic, MakeTopic, ManualNemesis, wait_until_lag_is_zero


def test_every_node_is_back_after_the_test_that_killed_it(
    quorumlog_cluster: LocalCluster, topic: FreshTopic
) -> None:
    assert quorumlog_cluster.running() == [1, 2, 3]
    with OrderDesk(quorumlog_cluster.bootstrap, topic) as desk:
        assert desk.place(7) == 0


def test_a_coroutine_awaits_the_nemesis(
    quorumlog_cluster: LocalCluster, topic: FreshTopic, nemesis: ManualNemesis
) -> None:
    async def place_and_read() -> bytes | None:
        partition = TopicPartition(topic, 0)
        async with (
            Producer(quorumlog_cluster.bootstrap) as producer,
            Consumer(quorumlog_cluster.bootstrap) as consumer,
        ):
            await producer.send_and_wait(topic, b"before")
            await nemesis.kill("partition-leader")
            await producer.send_and_wait(topic, b"after")
            consumer.assign([partition])
            consumer.seek(partition, 1)
            async for record in consumer:
                return record.value
        return None

    assert asyncio.run(place_and_read()) == b"after"


def test_an_application_with_names_of_its_own(
    clean_cluster: LocalCluster, make_topic: MakeTopic, quorumlog_consumer: SyncConsumer
) -> None:
    """Whatever earlier tests have left in the cluster, `orders` is new."""
    orders = make_topic("orders", partitions=3)
    with OrderDesk(clean_cluster.bootstrap, orders) as desk:
        assert desk.place(1) == 0
    quorumlog_consumer.subscribe([orders])
    while not (polled := quorumlog_consumer.poll(1_000)):
        pass
    assert [record.value for records in polled.values() for record in records] == [b"1"]
    quorumlog_consumer.commit()
    wait_until_lag_is_zero(clean_cluster, quorumlog_consumer.group_metadata().group_id)

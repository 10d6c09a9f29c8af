"""Kill the leader of a partition between two halves of the work, and read everything back.

python examples/kill_a_leader.py
"""
# ruff: noqa: T201 - an example prints

import asyncio

from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import NewTopic, TopicPartition

TOPIC = "orders"
PARTITION = TopicPartition(TOPIC, 0)
COUNT = 200


async def create(admin: Admin) -> None:
    """Make one partition on all three nodes; at least two must hold what is acknowledged."""
    configs = {"min.insync.replicas": "2"}
    await admin.create_topics(
        [NewTopic(name=TOPIC, num_partitions=1, replication_factor=3, configs=configs)]
    )


async def leader(admin: Admin) -> int:
    """Return the node that leads the partition."""
    topic = (await admin.describe_topics([TOPIC]))[TOPIC]
    return topic.partitions[0].leader_id


async def produce(producer: Producer, numbers: range) -> None:
    """Return when all are acknowledged."""
    deliveries = [await producer.send(TOPIC, b"%d" % number) for number in numbers]
    for delivery in deliveries:
        await delivery


async def read(bootstrap: str, count: int) -> list[int]:
    """Read the first `count` records."""
    numbers: list[int] = []
    async with Consumer(bootstrap) as consumer, asyncio.timeout(30):
        consumer.assign([PARTITION])
        consumer.seek_to_beginning(PARTITION)
        async for record in consumer:
            numbers.append(int(record.value or b""))
            if len(numbers) == count:
                break
    return numbers


async def main(cluster: LocalCluster) -> None:
    """Produce, kill, produce on, read."""
    half = COUNT // 2
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        await create(admin)
        await produce(producer, range(half))
        killed = await leader(admin)
        await asyncio.to_thread(cluster.kill, killed)
        await produce(producer, range(half, COUNT))
        print(f"killed node {killed}, node {await leader(admin)} leads now")
    numbers = await read(cluster.bootstrap, COUNT)
    in_order = numbers == list(range(COUNT))
    order = "in order" if in_order else "NOT in order"
    print(f"{len(numbers)} of {COUNT} records read, {order}")
    if not in_order:
        raise SystemExit(1)


if __name__ == "__main__":
    with LocalCluster(nodes=3) as cluster:
        asyncio.run(main(cluster))

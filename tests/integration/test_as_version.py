"""Clusters that answer as older releases: with our clients, and with clients of others."""

import asyncio
import time
from collections.abc import Iterator

import confluent_kafka
import kafka
import pytest

from quorumlog import LocalCluster
from quorumlog.client import NewTopic, Producer, TopicPartition
from quorumlog.client.sync import SyncAdmin, SyncConsumer
from quorumlog.wire.io.connection import KafkaConnection

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("as_version")]
COUNT = 50
WAIT_S = 30.0


@pytest.fixture(scope="module", params=["2.8", "3.9"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, as_version=request.param) as running:
        yield running


def create(cluster: LocalCluster, topic: str) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 3, 3)])


def read_all(cluster: LocalCluster, topic: str) -> list[bytes]:
    with SyncConsumer(
        cluster.bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        group_id=f"g-{topic}",
    ) as consumer:
        consumer.subscribe([topic])
        found: list[bytes] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(found) < COUNT and time.monotonic() < deadline_s:
            for records in consumer.poll(500).values():
                found += [one.value or b"" for one in records]
    return sorted(found)


VALUES = sorted(b"%d" % index for index in range(COUNT))


async def fetch_version(cluster: LocalCluster) -> int:
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    connection = await KafkaConnection.open(host, int(port), client_id="test")
    try:
        return connection.api_versions[1].stop - 1
    finally:
        await connection.close()


def test_clients_see_the_release_and_followers_all_versions(cluster: LocalCluster) -> None:
    release = cluster.spec.config["as.version"]
    assert asyncio.run(fetch_version(cluster)) == {"2.8": 12, "3.9": 17}[release]
    create(cluster, "replicated")
    with SyncAdmin(cluster.bootstrap) as admin:
        partitions = admin.describe_topics(["replicated"])["replicated"].partitions
        assert all(len(one.isr) == 3 for one in partitions.values())


def test_our_client_writes_in_a_transaction_and_reads_in_a_group(cluster: LocalCluster) -> None:
    create(cluster, "ours")

    async def write() -> None:
        async with Producer(cluster.bootstrap, transactional_id="ours") as producer:
            await producer.init_transactions()
            async with producer.transaction():
                for value in VALUES:
                    await producer.send("ours", value)

    asyncio.run(write())
    assert read_all(cluster, "ours") == VALUES


def test_librdkafka_writes_in_a_transaction_and_reads_in_a_group(cluster: LocalCluster) -> None:
    create(cluster, "librdkafka")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "librdkafka"}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce("librdkafka", value)
    producer.commit_transaction(WAIT_S)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "librdkafka",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["librdkafka"])
    found: list[bytes] = []
    deadline_s = time.monotonic() + WAIT_S
    while len(found) < COUNT and time.monotonic() < deadline_s:
        messages = consumer.consume(COUNT, timeout=0.5)
        found += [one.value() or b"" for one in messages if one.error() is None]
    consumer.close()
    assert sorted(found) == VALUES


def test_kafka_python_takes_it_for_that_release(cluster: LocalCluster) -> None:
    create(cluster, "python")
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        major, minor = map(int, cluster.spec.config["as.version"].split("."))
        assert producer.config["api_version"][:2] == (major, minor)
        for value in VALUES:
            producer.send("python", value)
        producer.flush(WAIT_S)
    finally:
        producer.close()
    assert read_all(cluster, "python") == VALUES


def test_a_leader_fails_over(cluster: LocalCluster) -> None:
    create(cluster, "failover")
    with SyncAdmin(cluster.bootstrap) as admin:
        leader = admin.describe_topics(["failover"])["failover"].partitions[0].leader_id
    cluster.kill(leader)
    try:

        async def write() -> int:
            async with Producer(cluster.bootstrap) as producer:
                sent = await producer.send_and_wait("failover", b"x", partition=0)
                return sent.offset

        assert asyncio.run(write()) == 0
    finally:
        cluster.start_node(leader)
    with SyncConsumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("failover", 0)])
        deadline_s = time.monotonic() + WAIT_S
        records = consumer.poll(500)
        while not records and time.monotonic() < deadline_s:
            records = consumer.poll(500)
    assert [one.value for part in records.values() for one in part] == [b"x"]

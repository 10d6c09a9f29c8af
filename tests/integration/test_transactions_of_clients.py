"""Transactions of unmodified clients, and of ours, against a cluster of real processes."""

import asyncio
import time
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest

from quorumlog import LocalCluster
from quorumlog.client import Producer
from tests.integration.test_real_clients import create

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("client_transactions")]
WAIT_S = 60.0
EACH = 40  # records of one transaction
PARTITIONS = 3

Write = Callable[[str, str], None]
"""Writes to a topic: `first` and `second` committed, `gone` aborted in between."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3) as running:
        yield running


def values(name: str) -> list[bytes]:
    return [b"%s-%d" % (name.encode(), index) for index in range(EACH)]


def confluent_writes(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"confluent-{topic}"}
    )
    producer.init_transactions(WAIT_S)
    for name, commits in (("first", True), ("gone", False), ("second", True)):
        producer.begin_transaction()
        for number, value in enumerate(values(name)):
            producer.produce(topic, value, partition=number % PARTITIONS)
        producer.flush(WAIT_S)
        if commits:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)


def kafka_python_writes(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"kafka-python-{topic}"
    )
    producer.init_transactions()
    for name, commits in (("first", True), ("gone", False), ("second", True)):
        producer.begin_transaction()
        for number, value in enumerate(values(name)):
            producer.send(topic, value, partition=number % PARTITIONS)
        producer.flush(WAIT_S)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close(WAIT_S)


def aiokafka_writes(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=f"aiokafka-{topic}"
        )
        await producer.start()
        for name, commits in (("first", True), ("gone", False), ("second", True)):
            await producer.begin_transaction()
            for number, value in enumerate(values(name)):
                await producer.send(topic, value, partition=number % PARTITIONS)
            await producer.flush()
            if commits:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
        await producer.stop()

    asyncio.run(asyncio.wait_for(write(), WAIT_S))


def ours_writes(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        async with Producer(bootstrap, transactional_id=f"ours-{topic}") as producer:
            await producer.init_transactions()
            for name, commits in (("first", True), ("gone", False), ("second", True)):
                producer.begin_transaction()
                for number, value in enumerate(values(name)):
                    await producer.send(topic, value, partition=number % PARTITIONS)
                await producer.flush()
                if commits:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

    asyncio.run(asyncio.wait_for(write(), WAIT_S))


def confluent_reads(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    parts = [
        confluent_kafka.TopicPartition(topic, index, confluent_kafka.OFFSET_BEGINNING)
        for index in range(PARTITIONS)
    ]
    consumer.assign(parts)
    found: list[bytes] = []
    ended: set[int | None] = set()
    deadline_s = time.monotonic() + WAIT_S
    while len(ended) < PARTITIONS and time.monotonic() < deadline_s:
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(message.value() or b"")
        elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    assert len(ended) == PARTITIONS
    return sorted(found)


def aiokafka_reads(bootstrap: str, topic: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        parts = [aiokafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = await consumer.end_offsets(parts)
        found: list[bytes] = []
        while any([await consumer.position(at) < ends[at] for at in parts]):
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                found += [one.value for one in batch]
        await consumer.stop()
        return sorted(found)

    return asyncio.run(asyncio.wait_for(read(), WAIT_S))


@pytest.mark.parametrize(
    "write",
    [confluent_writes, kafka_python_writes, aiokafka_writes, ours_writes],
    ids=["confluent", "kafka_python", "aiokafka", "ours"],
)
def test_a_reader_of_what_is_committed_sees_no_aborted_record(
    cluster: LocalCluster, write: Write
) -> None:
    topic = write.__name__.replace("_", "-")
    create(cluster.bootstrap, topic)
    write(cluster.bootstrap, topic)
    committed = sorted(values("first") + values("second"))
    assert confluent_reads(cluster.bootstrap, topic, "read_committed") == committed
    assert aiokafka_reads(cluster.bootstrap, topic) == committed
    everything = sorted([*committed, *values("gone")])
    assert confluent_reads(cluster.bootstrap, topic, "read_uncommitted") == everything


def test_an_open_transaction_is_not_seen_until_it_is_committed_by_another_leader(
    cluster: LocalCluster,
) -> None:
    create(cluster.bootstrap, "open")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "open"}
    )
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for number, value in enumerate(values("first")):
        producer.produce("open", value, partition=number % PARTITIONS)
    producer.flush(WAIT_S)
    assert confluent_reads(cluster.bootstrap, "open", "read_committed") == []
    assert confluent_reads(cluster.bootstrap, "open", "read_uncommitted") == sorted(values("first"))
    for node in cluster.nodes:  # each partition gets another leader, with a log that it has read
        cluster.stop_node(node.id)
        cluster.start_node(node.id)
    assert confluent_reads(cluster.bootstrap, "open", "read_committed") == []
    producer.commit_transaction(WAIT_S)
    assert confluent_reads(cluster.bootstrap, "open", "read_committed") == sorted(values("first"))

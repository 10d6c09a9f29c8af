"""Unmodified clients against a cluster of real processes."""

import asyncio
import time
from collections.abc import Iterator

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorumlog import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("real_clients")]
COUNT = 200
WAIT_S = 30.0
VALUES = {b"%d" % index for index in range(COUNT)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3) as running:
        yield running


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(WAIT_S)


def confluent_consume(bootstrap: str, topic: str, group: str, count: int = COUNT) -> set[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    seen: set[bytes] = set()
    deadline_s = time.monotonic() + WAIT_S
    while len(seen) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(500, timeout=0.5):
            if message.error() is None:
                seen.add(message.value() or b"")
    consumer.close()
    return seen


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_kafka_reads_what_it_wrote_in_every_codec(
    cluster: LocalCluster, codec: str
) -> None:
    topic = f"confluent-{codec}"
    create(cluster.bootstrap, topic)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 20}
    )
    for value in sorted(VALUES):
        producer.produce(topic, value * 20)
    assert producer.flush(WAIT_S) == 0
    seen = confluent_consume(cluster.bootstrap, topic, f"g-{codec}")
    assert seen == {value * 20 for value in VALUES}


def test_confluent_kafka_is_told_which_records_a_compacted_topic_refuses(
    cluster: LocalCluster,
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = NewTopic("compacted", 1, 3, config={"cleanup.policy": "compact"})
    admin.create_topics([wanted])["compacted"].result(WAIT_S)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "linger.ms": 200, "acks": "all"}
    )
    outcomes: dict[bytes, str | None] = {}

    def delivered(error: confluent_kafka.KafkaError | None, message: object) -> None:
        assert isinstance(message, confluent_kafka.Message)
        outcomes[message.value() or b""] = None if error is None else error.name()

    wrong = {3, 7}  # librdkafka tells the others apart only if there is more than one
    for number in range(10):  # one batch
        key = None if number in wrong else b"k"
        producer.produce("compacted", b"%d" % number, key, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    assert outcomes == {
        b"%d" % number: "INVALID_RECORD" if number in wrong else "_INVALID_DIFFERENT_RECORD"
        for number in range(10)
    }
    producer.produce("compacted", b"again", b"k", on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    assert outcomes[b"again"] is None


async def test_aiokafka_reads_what_it_wrote(cluster: LocalCluster) -> None:
    create(cluster.bootstrap, "aiokafka")

    async def both() -> set[bytes]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, enable_idempotence=True
        )
        async with producer:
            for value in sorted(VALUES):
                await producer.send_and_wait("aiokafka", value)
        consumer = aiokafka.AIOKafkaConsumer(
            "aiokafka",
            bootstrap_servers=cluster.bootstrap,
            group_id="aiokafka-group",
            auto_offset_reset="earliest",
        )
        seen: set[bytes] = set()
        async with consumer, asyncio.timeout(WAIT_S):
            while len(seen) < COUNT:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    seen.update(record.value for record in records)
            await consumer.commit()
            places = [await consumer.committed(at) for at in consumer.assignment()]
        assert sum(place or 0 for place in places) == COUNT
        return seen

    assert await both() == VALUES


def test_kafka_python_reads_what_it_wrote(cluster: LocalCluster) -> None:
    create(cluster.bootstrap, "kafka-python")
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    sent = [producer.send("kafka-python", value) for value in sorted(VALUES)]
    producer.flush(WAIT_S)
    assert {future.get(WAIT_S).topic for future in sent} == {"kafka-python"}
    producer.close()
    consumer = kafka.KafkaConsumer(
        "kafka-python",
        bootstrap_servers=cluster.bootstrap,
        group_id="kafka-python-group",
        group_instance_id="only",
        auto_offset_reset="earliest",
    )
    seen: set[bytes] = set()
    deadline_s = time.monotonic() + WAIT_S
    while len(seen) < COUNT and time.monotonic() < deadline_s:
        for records in consumer.poll(timeout_ms=500).values():
            seen.update(record.value for record in records)
    consumer.commit()
    places = [consumer.committed(at) for at in consumer.assignment()]
    consumer.close()
    assert seen == VALUES
    assert sum(place or 0 for place in places) == COUNT
    admin = kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    assert "kafka-python" in admin.list_topics()
    assert "kafka-python-group" in {group["group_id"] for group in admin.list_groups()}
    admin.close()

"""Time on request, with real processes: days pass in a call, and no session ends by them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from quorumlog import LocalCluster
from quorumlog.cluster.errors import ClusterError, InvalidArgument

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("time_on_request")]
WAIT_S = 30.0
DAY_MS = 86_400_000
SETTINGS = {
    "offsets.retention.minutes": "1440",
    "min.insync.replicas": "2",
    "producer.id.expiration.ms": "60000",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("time"), nodes=3, config=SETTINGS) as cluster:
        yield cluster


def create(cluster: LocalCluster, topic: str, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, 1, 3, config=settings)])[topic].result(WAIT_S)
    return topic


def produce(cluster: LocalCluster, topic: str, *pairs: tuple[str, str]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for key, value in pairs:
        producer.produce(topic, value, key=key)
    assert producer.flush(WAIT_S) == 0


def values(cluster: LocalCluster, topic: str) -> list[str]:
    """Return the values that a reader of committed records finds, up to the end at the call."""
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": f"reader-{time.monotonic_ns()}",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    found: list[str] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"no record and no end of {topic} within {WAIT_S} s"
            error = message.error()
            if error is None:
                found.append(message.value().decode())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()


def memberships(cluster: LocalCluster) -> dict[str, Any]:
    """Return the leaders, epochs and in-sync replicas, and the controller's epoch."""
    status = cluster.node_status(cluster.nodes[0].id)
    assert status is not None
    return {
        "topics": status["topics"],
        "fenced": status["fenced"],
        "epoch": status["quorum"]["leader_epoch"],
    }


def ahead_ms(cluster: LocalCluster) -> dict[int, int]:
    found = {node.id: cluster.node_status(node.id) for node in cluster.nodes}
    return {node_id: one["clock_ahead_ms"] for node_id, one in found.items() if one is not None}


def test_records_age_by_the_advances_after_their_write(cluster: LocalCluster) -> None:
    orders = create(cluster, "orders")
    produce(cluster, orders, ("k", "old"))
    assert cluster.advance(days=6)["removed"].get("orders-0") is None
    produce(cluster, orders, ("k", "young"))  # by a client whose clock was not advanced
    removed = cluster.advance(days=2)["removed"]["orders-0"]
    assert removed["records"] == removed["segments"] == 1
    assert values(cluster, orders) == ["young"]
    assert cluster.apply_retention(orders)["removed"] == {}
    assert values(cluster, orders) == ["young"]
    cluster.advance(days=6)
    assert values(cluster, orders) == []

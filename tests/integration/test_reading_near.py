"""A cluster with racks, on real processes: where replicas are, who reads them, and its loss."""

import json
import time
import urllib.request
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorumlog import LocalCluster
from quorumlog.broker.settings import RACK_SELECTOR
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.control.manual_nemesis import ManualNemesis
from quorumlog.client.sync import SyncAdmin, SyncConsumer
from quorumlog.wire.codec.identifiers import TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("reading_near")]
TOPIC, COUNT, WAIT_S = "t", 20, 30.0
FETCH = "1"  # its API key


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("racks")
    config = {"replica.selector.class": RACK_SELECTOR}
    racks = ["rack-1", "rack-2", "rack-3"]
    with LocalCluster(directory, nodes=5, racks=racks, config=config) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(WAIT_S)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for index in range(COUNT):
            producer.produce(TOPIC, b"%d" % index)
        assert producer.flush(WAIT_S) == 0
        yield cluster


def follower(cluster: LocalCluster, place: int) -> int:
    """Return a broker that leads nothing: only consumers fetch from it."""
    metadata = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(TOPIC, WAIT_S)
    partition = metadata.topics[TOPIC].partitions[0]
    return int(sorted({*partition.replicas} - {partition.leader})[place])


def rack_of(cluster: LocalCluster, node_id: int) -> str:
    return str(cluster.spec.node(node_id).rack)


def fetches_at(cluster: LocalCluster, node_id: int) -> int:
    control = cluster.spec.node(node_id).control
    with urllib.request.urlopen(f"http://{control}/api/v1/status", timeout=WAIT_S) as response:
        requests: dict[str, int] = json.load(response)["requests"]
    return requests.get(FETCH, 0)


def test_our_consumer_reads_from_its_rack(cluster: LocalCluster) -> None:
    near = follower(cluster, 0)
    before = fetches_at(cluster, near)
    rack = rack_of(cluster, near)
    with SyncConsumer(
        cluster.bootstrap, auto_offset_reset="earliest", client_rack=rack
    ) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        values = [record.value for record in islice(consumer, COUNT)]
    assert values == [b"%d" % index for index in range(COUNT)]
    assert fetches_at(cluster, near) > before


def test_kafka_python_reads_from_its_rack(cluster: LocalCluster) -> None:
    near = follower(cluster, 1)
    before = fetches_at(cluster, near)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","),
        auto_offset_reset="earliest",
        client_rack=rack_of(cluster, near),
    )
    consumer.assign([kafka.TopicPartition(TOPIC, 0)])
    values = [next(consumer).value for _ in range(COUNT)]
    consumer.close()
    assert values == [b"%d" % index for index in range(COUNT)]
    assert fetches_at(cluster, near) > before


def test_librdkafka_reads_from_its_rack(cluster: LocalCluster) -> None:
    near = follower(cluster, 0)
    asked: set[int] = set()

    def note(statistics: str) -> None:
        brokers: dict[str, dict[str, Any]] = json.loads(statistics)["brokers"]
        asked.update(one["nodeid"] for one in brokers.values() if one["req"].get("Fetch"))

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reads-near",
            "client.rack": rack_of(cluster, near),
            "statistics.interval.ms": 100,
            "stats_cb": note,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    values: list[bytes | None] = []
    deadline_s = time.monotonic() + WAIT_S
    while (len(values) < COUNT or near not in asked) and time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    assert values == [b"%d" % index for index in range(COUNT)]
    assert near in asked


def test_no_rack_has_two_replicas_of_a_partition(cluster: LocalCluster) -> None:
    """Two of five brokers are in rack-1: they never hold the same partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("spread", 8, 3)])["spread"].result(WAIT_S)
    shown = {node["id"]: node["rack"] for node in cluster.status()["nodes"]}
    assert shown == {1: "rack-1", 2: "rack-2", 3: "rack-3", 4: "rack-1", 5: "rack-2"}
    with SyncAdmin(cluster.bootstrap) as ours:
        partitions = ours.describe_topics(["spread"])["spread"].partitions.values()
        live = ours.describe_cluster()
    for one in partitions:
        racks = [live.rack(broker_id) for broker_id in one.replicas]
        assert sorted(map(str, racks)) == ["rack-1", "rack-2", "rack-3"]
    assert {*shown} == {broker_id for one in partitions for broker_id in one.replicas}


def test_a_topic_survives_the_loss_of_a_rack(cluster: LocalCluster) -> None:
    """rack-1 has two of the five nodes; every partition has two replicas elsewhere."""
    nemesis = ManualNemesis(
        LocalProcesses(cluster), topics=lambda: [TOPIC], topic=TOPIC, seed=1, record=lambda *_: None
    )
    config = {"bootstrap.servers": cluster.bootstrap, "acks": "all"}
    with nemesis, nemesis.paused("rack:rack-1") as node_ids:
        assert node_ids == (1, 4)
        cluster.wait(topic=TOPIC, isr=2, timeout_s=WAIT_S)
        producer = confluent_kafka.Producer(config)
        errors: list[object] = []
        producer.produce(TOPIC, b"lost?", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(WAIT_S) == 0
        assert errors == [None]
    cluster.settled(timeout_s=WAIT_S)

"""Unmodified admin clients grow, configure and lead topics of a cluster of real processes."""

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType, KafkaAdminClient

from quorumlog import LocalCluster
from tests.support.cluster.kept_topic import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("real_clients")]
WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3) as running:
        yield running


def create(cluster: LocalCluster, name: str, partitions: int = 1) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result(WAIT_S)
    return admin


def partitions(cluster: LocalCluster, topic: str) -> list[dict[str, Any]]:
    return [*cluster.status()["topics"][topic]["partitions"]]


def own_configs(admin: AdminClient, topic: str) -> dict[str, str | None]:
    [described] = admin.describe_configs([ConfigResource("TOPIC", topic)]).values()
    entries = described.result(WAIT_S)
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in entries.items() if entry.source == own}


def produce(cluster: LocalCluster, topic: str, partition: int, size: int = 1) -> str | None:
    """Return the name of the error, if any."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    errors: list[str | None] = []
    producer.produce(
        topic,
        b"v" * size,
        partition=partition,
        callback=lambda error, _: errors.append(None if error is None else error.name()),
    )
    assert producer.flush(WAIT_S) == 0
    return errors[0]


def test_confluent_kafka_grows_a_topic_and_writes_to_its_new_partitions(
    cluster: LocalCluster,
) -> None:
    admin = create(cluster, "grows")
    admin.create_partitions([NewPartitions("grows", 3)])["grows"].result(WAIT_S)
    wait_for(lambda: produce(cluster, "grows", 2) is None)  # by the metadata of any broker
    wait_for(lambda: [len(p["replicas"]) for p in partitions(cluster, "grows")] == [3, 3, 3])
    refused = admin.create_partitions([NewPartitions("grows", 3)])["grows"]
    with pytest.raises(confluent_kafka.KafkaException, match="already has 3 partition"):
        refused.result(WAIT_S)


def test_confluent_kafka_alters_configurations_which_are_in_force_at_once(
    cluster: LocalCluster,
) -> None:
    admin = create(cluster, "altered")

    def alter(name: str, operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource("TOPIC", "altered", incremental_configs=[entry])
        [altered] = admin.incremental_alter_configs([resource]).values()
        altered.result(WAIT_S)

    alter("max.message.bytes", AlterConfigOpType.SET, "500")
    alter("cleanup.policy", AlterConfigOpType.APPEND, "compact")
    expected = {"max.message.bytes": "500", "cleanup.policy": "delete,compact"}
    wait_for(lambda: own_configs(admin, "altered") == expected)  # of any broker
    wait_for(lambda: produce(cluster, "altered", 0, size=1000) == "MSG_SIZE_TOO_LARGE")
    alter("max.message.bytes", AlterConfigOpType.DELETE, None)
    alter("cleanup.policy", AlterConfigOpType.DELETE, None)
    wait_for(lambda: produce(cluster, "altered", 0, size=1000) is None)
    with pytest.raises(confluent_kafka.KafkaException, match=r"did you mean retention\.ms"):
        alter("retenton.ms", AlterConfigOpType.SET, "1")


def test_confluent_kafka_replaces_a_configuration_as_a_whole(cluster: LocalCluster) -> None:
    admin = create(cluster, "replaced")
    for configs in ({"retention.ms": "7", "segment.ms": "8"}, {"segment.ms": "9"}):
        resource = ConfigResource("TOPIC", "replaced", set_config=configs)
        with pytest.deprecated_call():
            [altered] = admin.alter_configs([resource]).values()
        altered.result(WAIT_S)
    wait_for(lambda: own_configs(admin, "replaced") == {"segment.ms": "9"})


def test_kafka_python_alters_grows_and_describes_the_quorum(cluster: LocalCluster) -> None:
    confluent = create(cluster, "python")
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        resource = PythonResource(ConfigResourceType.TOPIC, "python", {"segment.ms": "9"})
        admin.alter_configs([resource])
        wait_for(lambda: own_configs(confluent, "python") == {"segment.ms": "9"})
        assert admin.create_partitions({"python": 2}, timeout_ms=10_000)
        quorum = admin.describe_metadata_quorum()
    finally:
        admin.close()
    [partition] = quorum["topics"][0]["partitions"]
    assert [voter["replica_id"] for voter in partition["current_voters"]] == [1, 2, 3]
    assert partition["leader_id"] in {1, 2, 3}
    now_ms = time.time() * 1000
    for voter in partition["current_voters"]:
        assert voter["log_end_offset"] > 0
        assert abs(now_ms - voter["last_fetch_timestamp"]) < 60_000
        assert str(voter["replica_directory_id"]) != "00000000-0000-0000-0000-000000000000"
    assert len(quorum["nodes"]) == 3


def test_a_broker_that_was_away_leads_again_once_the_preferred_leaders_are_elected(
    cluster: LocalCluster,
) -> None:
    admin = create(cluster, "led", partitions=3)
    victim = 2
    preferred = [partition["replicas"][0] for partition in partitions(cluster, "led")]
    assert sorted(preferred) == [1, 2, 3]
    cluster.kill(victim)
    wait_for(lambda: victim not in {p["leader"] for p in partitions(cluster, "led")})
    cluster.start_node(victim)
    wait_for(lambda: all(victim in p["isr"] for p in partitions(cluster, "led")))
    assert victim not in {partition["leader"] for partition in partitions(cluster, "led")}
    every = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, None).result(WAIT_S)
    elected = {(at.topic, at.partition): error for at, error in every.items()}
    [back] = [index for index, leader in enumerate(preferred) if leader == victim]
    assert elected["led", back] is None
    wait_for(lambda: [p["leader"] for p in partitions(cluster, "led")] == preferred)
    again = confluent_kafka.TopicPartition("led", back)
    outcome = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [again])
    [error] = outcome.result(WAIT_S).values()
    assert error.name() == "ELECTION_NOT_NEEDED"
    assert produce(cluster, "led", back) is None

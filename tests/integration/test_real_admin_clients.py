"""What unmodified admin clients are told: operations, features, settings, what is not there."""

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka import TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from quorumlog import LocalCluster
from quorumlog.wire.codec.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from quorumlog.wire.io.connection import KafkaConnection

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("real_clients")]
WAIT_S = 30.0


NODE = {  # settings of a node that hold for topics
    "log.segment.bytes": "2000000",
    "log.roll.ms": "60000",
    "message.max.bytes": "1500000",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1, config=NODE) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
        yield running


@pytest.fixture
def bootstrap(cluster: LocalCluster) -> str:
    return cluster.bootstrap


def commit(bootstrap: str, group: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition("t", 0, 5)], asynchronous=False)
    consumer.close()


def test_confluent_kafka_is_told_what_it_may_do(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = admin.describe_topics(TopicCollection(["t"]), include_authorized_operations=True)
    assert len(topics["t"].result(WAIT_S).authorized_operations) == 8
    cluster = admin.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert len(cluster.authorized_operations) == 7
    commit(bootstrap, "described")
    groups = admin.describe_consumer_groups(["described"], include_authorized_operations=True)
    assert len(groups["described"].result(WAIT_S).authorized_operations) == 5


def test_kafka_python_reads_features_partitions_and_resources(bootstrap: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    features = admin.describe_features()
    resources = admin.list_config_resources()
    partitions = str(admin.describe_topic_partitions(["t"]))
    admin.close()
    assert features["eligible.leader.replicas.version"]["finalized"] == (1, 1)
    assert features["group.version"]["supported"] == (0, 1)
    assert features["transaction.version"]["finalized"] == (2, 2)
    assert features["metadata.version"]["finalized"] == (27, 27)
    assert ("t" in resources["topic"], resources["broker"]) == (True, ["1"])
    assert "eligible_leader_replicas" in partitions


def test_kafka_python_deletes_an_offset(bootstrap: str) -> None:
    commit(bootstrap, "deleted")
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    where = kafka.TopicPartition("t", 0)
    assert admin.list_group_offsets(["deleted"])["deleted"][where].offset == 5
    admin.delete_group_offsets("deleted", [where])
    assert where not in admin.list_group_offsets(["deleted"]).get("deleted", {})
    admin.close()


def test_confluent_kafka_reads_the_settings_in_force(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic, broker = ConfigResource("topic", "t"), ConfigResource("broker", "1")
    found = {key: one.result(WAIT_S) for key, one in admin.describe_configs([topic]).items()}[topic]
    shown = {name: (one.value, one.source) for name, one in found.items()}
    static = ConfigSource.STATIC_BROKER_CONFIG.value
    expected = {
        "segment.bytes": ("2000000", static),
        "segment.ms": ("60000", static),
        "max.message.bytes": ("1500000", static),
        "cleanup.policy": ("delete", ConfigSource.DEFAULT_CONFIG.value),
    }
    assert expected.items() <= shown.items()
    assert len(shown) == 33
    assert [*found["segment.ms"].synonyms] == ["log.roll.ms", "log.roll.hours"]
    [of_broker] = admin.describe_configs([broker]).values()
    values = {name: one.value for name, one in of_broker.result(WAIT_S).items()}
    assert NODE.items() <= values.items()
    assert values["advertised.listeners"] == f"PLAINTEXT://{bootstrap}"


def test_a_node_goes_by_what_it_describes(cluster: LocalCluster) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 5_000_000}
    )
    errors: list[str | None] = []

    def delivered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        errors.append(error.name() if error else None)

    for size in (1_400_000, 1_400_000, 1_400_000, 1_600_000):
        producer.produce("t", bytes(size), on_delivery=delivered)
        producer.flush(WAIT_S)
    assert errors == [None, None, None, "MSG_SIZE_TOO_LARGE"]
    [log] = cluster.directory.glob("node-1/**/t-0")
    assert len([*log.glob("*.log")]) == 3  # two batches are more than a segment


def test_kafka_python_reads_types_and_synonyms(bootstrap: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    topic = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, "t")
    found = admin.describe_configs([topic], include_synonyms=True, config_filter="all")
    admin.close()
    settings = found["topic"]["t"]
    assert (len(settings), settings["cleanup.policy"]["config_type"]) == (33, "LIST")
    assert settings["segment.bytes"]["synonyms"] == [
        {"name": "log.segment.bytes", "value": "2000000", "source": "STATIC_BROKER_CONFIG"},
        {"name": "log.segment.bytes", "value": "1073741824", "source": "DEFAULT_CONFIG"},
    ]


def test_confluent_kafka_alters_a_group(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = "consumer.session.timeout.ms"
    group = ConfigResource(ResourceType.GROUP, "g")
    for operation, value, shown in (
        (AlterConfigOpType.SET, "50000", ("50000", 8)),
        (AlterConfigOpType.DELETE, None, ("45000", 5)),
    ):
        entry = ConfigEntry(name, value, incremental_operation=operation)
        altered = ConfigResource(ResourceType.GROUP, "g", incremental_configs=[entry])
        [done] = admin.incremental_alter_configs([altered]).values()
        done.result(WAIT_S)
        [described] = admin.describe_configs([group]).values()
        found = described.result(WAIT_S)[name]
        assert (found.value, found.source) == shown
    too_long = ConfigEntry(name, "60001", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.GROUP, "g", incremental_configs=[too_long])
    [refused] = admin.incremental_alter_configs([altered]).values()
    with pytest.raises(confluent_kafka.KafkaException) as error:
        refused.result(WAIT_S)
    assert error.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG


async def test_aiokafka_reads_the_settings(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        resources = [AioResource(AioResourceType.TOPIC, "t")]
        [answer] = await admin.describe_configs(resources, include_synonyms=True)
    finally:
        await admin.close()
    [(error_code, _, _, name, settings)] = answer.resources
    assert (error_code, name, len(settings)) == (0, "t", 33)
    values = {setting[0]: setting[1] for setting in settings}
    assert NODE["log.segment.bytes"] == values["segment.bytes"]


async def test_a_creation_is_answered_with_the_settings_as_they_are_kept(bootstrap: str) -> None:
    given = {"flush.ms": " 007", "preallocate": "TRUE", "cleanup.policy": "compact , delete"}
    configs = [CreatableTopicConfig(name=name, value=value) for name, value in given.items()]
    topic = CreatableTopic(name="kept", num_partitions=1, replication_factor=1, configs=configs)
    host, _, port = bootstrap.rpartition(":")
    connection = await KafkaConnection.open(host, int(port), client_id="test")
    try:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
        [made] = (await connection.send(request, version=7)).topics
    finally:
        await connection.close()
    kept = {"flush.ms": "7", "preallocate": "true", "cleanup.policy": "compact,delete"}
    sources = {config.name: config.config_source for config in made.configs or []}
    assert kept.items() <= {config.name: config.value for config in made.configs or []}.items()
    assert {name for name, source in sources.items() if source == 1} == given.keys()
    assert (sources["segment.bytes"], sources["retention.ms"]) == (4, 5)


def test_confluent_kafka_creates_finds_and_deletes_acls(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    acl = AclBinding(
        ResourceType.TOPIC,
        "or",
        ResourcePatternType.PREFIXED,
        "User:ann",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([acl])[acl].result(WAIT_S)
    anyone: Any = None  # which its types do not know
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.MATCH,
        anyone,
        anyone,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert admin.describe_acls(wanted).result(WAIT_S) == [acl]
    assert admin.delete_acls([wanted])[wanted].result(WAIT_S) == [acl]
    assert admin.describe_acls(wanted).result(WAIT_S) == []

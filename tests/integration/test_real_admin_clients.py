"""What unmodified admin clients are told: operations, features, pages, what is not there."""

from collections.abc import Iterator

import confluent_kafka
import kafka
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorumlog import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("real_clients")]
WAIT_S = 30.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with LocalCluster(nodes=1) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
        yield running.bootstrap


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
    assert features["group.version"] == {"supported": (0, 0)}
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


def test_confluent_kafka_reports_that_the_new_group_protocol_is_not_there(bootstrap: str) -> None:
    """Without an answer it would ask for ever and say nothing (KIP-848)."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "new", "group.protocol": "consumer"}
    )
    consumer.subscribe(["t"])
    message = consumer.poll(WAIT_S)
    consumer.close()
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == confluent_kafka.KafkaError._FATAL
    assert "API version not supported" in error.str()

"""A new topic for each test, so that tests which share a cluster do not meet."""

import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from quorumlog.client import NewTopic, TopicPartition
from quorumlog.client.sync import SyncAdmin
from quorumlog.testing.waits import wait_for_leaders

if TYPE_CHECKING:
    from quorumlog.client import ConsumerRecord
    from quorumlog.client.settings import IsolationLevel
    from quorumlog.cluster import LocalCluster

_NAME_MAX: Final = 80
_REPLICAS: Final = 3


class FreshTopic(str):
    """The name of a topic that was created for a test, with its number of partitions."""

    __slots__ = ("partitions",)
    partitions: int

    def __new__(cls, name: str, partitions: int) -> Self:
        """Return the name of a topic with this number of partitions."""
        topic = super().__new__(cls, name)
        topic.partitions = partitions
        return topic

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]  # str has one argument
        """Return the arguments of a copy: rules of the nemesis copy their parameters."""
        return str(self), self.partitions

    def key(self, partition: int) -> str:
        """Return the key of a partition in a history: `<topic>-<partition>`."""
        return f"{self}-{partition}"


class MakeTopic:
    """Creates topics for one test."""

    def __init__(self, cluster: "LocalCluster", test_name: str) -> None:
        self._cluster: Final = cluster
        self._test_name: Final = test_name

    def __call__(
        self,
        name: str | None = None,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, str | int | float | bool] | None = None,
    ) -> FreshTopic:
        """Create a topic of this name; None: a new name that begins with the test's.

        Returns when every running broker has its leaders. replication_factor: None is 3, or the
        number of brokers if smaller. Raises KafkaError, for example TOPIC_ALREADY_EXISTS, unless
        the test uses `clean_cluster`.
        """
        options: dict[str, Any] = {"num_partitions": partitions, "configs": configs or {}}
        if replication_factor is not None:
            options["replication_factor"] = replication_factor
        return create_topic(self._cluster, name or fresh_name(self._test_name), options)


def create_topic(cluster: "LocalCluster", name: str, options: Mapping[str, Any]) -> FreshTopic:
    """Create a topic; return when every running broker has its leaders.

    Without options it has one partition, on three brokers, or on all of fewer brokers. Raises
    KafkaError, and TypeError for an option that NewTopic does not have.
    """
    brokers = sum(node.is_broker for node in cluster.nodes)
    wanted = {"num_partitions": 1, "replication_factor": min(_REPLICAS, brokers), **options}
    with SyncAdmin(**cluster.own_client()) as admin:
        admin.create_topics([NewTopic(name, **wanted)])
    return FreshTopic(name, len(wait_for_leaders(cluster, name)))


def read_topic(
    cluster: "LocalCluster", topic: str, *, isolation_level: "IsolationLevel" = "read_committed"
) -> list["ConsumerRecord"]:
    """Return the records of a topic, from the beginning to the end: partition by partition.

    The end is the last stable offset (`read_committed`) or the high watermark at the time of the
    call. Raises KafkaError.
    """
    from quorumlog.client.sync import SyncConsumer

    config = cluster.own_client()
    found: list[ConsumerRecord] = []
    with SyncConsumer(**config, isolation_level=isolation_level) as consumer:
        for number in consumer.partitions_for(topic):
            partition = TopicPartition(topic, number)
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            end = consumer.end_offsets([partition])[partition]
            while consumer.position(partition) < end:
                found += consumer.poll(1_000).get(partition, [])
    return found


def topics_of(cluster: "LocalCluster") -> list[str]:
    """Return the topics of a cluster, without Kafka's own."""
    return sorted(filter(is_of_users, cluster.status()["topics"]))


def is_of_users(topic: str) -> bool:
    """Return whether a topic is not one of Kafka's internal topics."""
    return not topic.startswith("__")


def fresh_name(test_name: str) -> str:
    """Return a name that no other topic or group has; it begins with the name of the test."""
    return f"{topic_name(test_name)}-{secrets.token_hex(3)}"


def topic_name(test_name: str) -> str:
    """Return the name of a test, in the characters that Kafka allows in a topic's name."""
    return re.sub(r"[^a-zA-Z0-9._]+", "_", test_name).strip("_.")[:_NAME_MAX] or "test"

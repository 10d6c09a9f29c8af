"""A new topic for each test, so that tests which share a cluster do not meet."""

import re
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from quorumlog.client import NewTopic
from quorumlog.client.sync import SyncAdmin

if TYPE_CHECKING:
    from quorumlog.cluster import LocalCluster

_NAME_MAX: Final = 80
_REPLICAS: Final = 3
_KNOWN_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.02


class TopicUnknown(Exception):
    """A topic was created, and a broker did not hear of it in time."""


class FreshTopic(str):
    """The name of a topic that was made for a test; it knows how many partitions it has."""

    __slots__ = ("partitions",)
    partitions: int

    def __new__(cls, name: str, partitions: int) -> Self:
        """Return the name."""
        topic = super().__new__(cls, name)
        topic.partitions = partitions
        return topic

    def key(self, partition: int) -> str:
        """Return what a history calls this partition: `<topic>-<partition>`."""
        return f"{self}-{partition}"


def create_topic(cluster: "LocalCluster", test_name: str, options: Mapping[str, Any]) -> FreshTopic:
    """Create a topic whose name begins with that of the test; return when every broker knows it.

    Without options it has one partition, on three brokers or as many as there are. Raises
    KafkaError, and TypeError for an option that NewTopic does not have.
    """
    brokers = sum(node.is_broker for node in cluster.nodes)
    wanted = {"num_partitions": 1, "replication_factor": min(_REPLICAS, brokers), **options}
    name = f"{topic_name(test_name)}-{secrets.token_hex(3)}"
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, **wanted)])
    return FreshTopic(name, _wait_until_known(cluster, name))


def topics_of(cluster: "LocalCluster") -> list[str]:
    """Return the topics of a cluster, without Kafka's own."""
    return sorted(name for name in cluster.status()["topics"] if not name.startswith("__"))


def _wait_until_known(cluster: "LocalCluster", name: str) -> int:
    """Return the number of partitions once every running broker has heard of their leaders."""
    deadline_s = time.monotonic() + _KNOWN_TIMEOUT_S
    brokers = {node.id for node in cluster.nodes if node.is_broker}
    while True:
        running = brokers.intersection(cluster.running())
        views = [_leaders(cluster.node_status(node_id), name) for node_id in sorted(running)]
        if all(views):
            return len(views[0])
        if time.monotonic() > deadline_s:
            raise TopicUnknown(f"topic {name} is not known to every broker: {views}")
        time.sleep(_POLL_S)


def _leaders(status: Mapping[str, Any] | None, name: str) -> list[int]:
    """Return the leaders that a broker knows; none if one of them is not known."""
    known = [] if status is None else status["topics"].get(name, {"partitions": []})["partitions"]
    leaders = [int(partition["leader"]) for partition in known]
    return leaders if all(leader >= 0 for leader in leaders) else []


def topic_name(test_name: str) -> str:
    """Return the name of a test as Kafka allows it in the name of a topic."""
    return re.sub(r"[^a-zA-Z0-9._]+", "_", test_name).strip("_.")[:_NAME_MAX] or "test"

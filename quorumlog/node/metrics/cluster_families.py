"""The families of the metadata quorum and of the controller, and kafka_exporter's of the cluster.

A controller has all controller families, whether or not it is active, as in Kafka. Those of
kafka_exporter are on the active controller's node alone: so a sum over all nodes is right.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from quorumlog.addresses import address_text
from quorumlog.metadata_quorum.image import ClusterImage, PartitionImage
from quorumlog.node.election_counts import ElectionCounts
from quorumlog.node.metrics.broker_families import partition_labels
from quorumlog.node.metrics.exposition import Family, labels
from quorumlog.wire.codec.identifiers import NO_LEADER, TopicPartition

_RAFT: Final = "kafka_server_raftmetrics_"
_CONTROLLER: Final = "kafka_controller_kafkacontroller_"
PARTITIONS_AT_ONCE: Final = 2_000  # in one turn of the event loop: about half a millisecond


def quorum_families(quorum: Mapping[str, Any], image: ClusterImage) -> Iterator[Family]:
    """Yield the families of a node's quorum, from its status (`MetadataQuorum.describe`)."""
    for name, documentation, value in (
        ("current_leader", "The id of the quorum's leader; -1: unknown.", quorum["leader_id"]),
        ("current_vote", "The id that this node votes for; -1: none.", quorum["voted_id"]),
        ("current_epoch", "The epoch of the quorum.", quorum["leader_epoch"]),
        ("high_watermark", "The end of the committed metadata records.",
         quorum["high_watermark"]),
        ("log_end_offset", "The end of the metadata log.", quorum["log_end_offset"]),
        ("number_of_voters", "Voters of the quorum.", len(quorum["voters"])),
    ):  # fmt: skip
        yield Family(f"{_RAFT}{name}", "gauge", documentation, [("", value)])
    is_voter = any(voter["id"] == quorum["node_id"] for voter in quorum["voters"])
    state = quorum["role"] if is_voter or quorum["role"] != "follower" else "observer"
    role = [(labels({"current_state": state}), 1)]
    yield Family(f"{_RAFT}current_state", "gauge", "The role in the quorum.", role)
    if quorum["role"] == "leader":
        text = "Observers that fetch from this leader."
        count = [("", len(quorum["observers"]))]
        yield Family(f"{_RAFT}number_of_observers", "gauge", text, count)
        text = "Metadata records that a voter lacks; of the leader alone."
        lag = [
            (labels({"voter": voter["id"]}), voter["lag"])
            for voter in quorum["voters"]
            if voter["lag"] is not None
        ]
        yield Family("quorumlog_quorum_voter_lag", "gauge", text, lag)
    name = "kafka_server_brokermetadatametrics_last_applied_record_offset"
    text = "The offset of the last metadata record that this node has applied."
    yield Family(name, "gauge", text, [("", image.end_offset - 1)])


class Cluster:
    """The partitions of the cluster, by the image of one node at the start of a scrape."""

    def __init__(self, image: ClusterImage) -> None:
        self.image: Final = image
        self.leaderless: Final[list[tuple[str, PartitionImage]]] = []
        self.partitions = self.not_preferred = 0

    def count(self) -> Iterator[None]:
        """Count them; between the steps of this iterator, other work may be done."""
        number = 0
        for name, topic in self.image.topics.items():
            self.partitions += len(topic.partitions)
            for index, partition in enumerate(topic.partitions):
                number += 1
                if partition.leader_id == NO_LEADER:
                    at = partition_labels(TopicPartition(name, index))
                    self.leaderless.append((at, partition))
                self.not_preferred += partition.leader_id != partition.replicas[0]
                if number % PARTITIONS_AT_ONCE == 0:
                    yield

    def controller_families(
        self, elections: ElectionCounts, *, is_active: bool
    ) -> Iterator[Family]:
        """Yield the families of a node with the role `controller`."""
        image = self.image
        fenced = sum(broker.fenced for broker in image.brokers.values())
        for name, documentation, value in (
            ("activecontrollercount", "1: this controller is active.", int(is_active)),
            ("activebrokercount", "Brokers that serve clients.", len(image.brokers) - fenced),
            ("fencedbrokercount", "Registered brokers that are fenced.", fenced),
            ("globaltopiccount", "Topics.", len(image.topics)),
            ("globalpartitioncount", "Partitions of all topics.", self.partitions),
            ("offlinepartitionscount", "Partitions without a leader.", len(self.leaderless)),
            ("preferredreplicaimbalancecount", "Partitions not led by their first replica.",
             self.not_preferred),
        ):  # fmt: skip
            yield Family(f"{_CONTROLLER}{name}", "gauge", documentation, [("", value)])
        yield Family(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "counter",
            "Elections of replicas outside the ISR.",
            [("", elections.unclean)],
        )
        yield Family(
            "quorumlog_partition_leader_elections_total",
            "counter",
            "Partitions that got a new leader.",
            [("", elections.elections)],
        )

    def exported_families(self) -> Iterator[Family]:
        """Yield kafka_exporter's families of brokers and topics."""
        brokers = [broker for _, broker in sorted(self.image.brokers.items()) if not broker.fenced]
        yield Family("kafka_brokers", "gauge", "Brokers that serve clients.", [("", len(brokers))])
        addresses = [
            (labels({"id": one.broker_id, "address": address_text(one.host, one.port)}), 1)
            for one in brokers
        ]
        yield Family("kafka_broker_info", "gauge", "The address of a broker.", addresses)
        topics = [
            (labels({"topic": name}), len(topic.partitions))
            for name, topic in sorted(self.image.topics.items())
        ]
        yield Family("kafka_topic_partitions", "gauge", "Partitions of a topic.", topics)

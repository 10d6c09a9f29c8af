"""The addresses of the leaders that a client should have asked (KIP-951)."""

from collections.abc import Iterable
from typing import NamedTuple

from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.identifiers import TopicPartition


class LeaderHint(NamedTuple):
    """A broker's Kafka listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


def leader_hints(image: ClusterImage, partitions: Iterable[TopicPartition]) -> list[LeaderHint]:
    """Return the brokers that lead these partitions, each once, by id."""
    leaders = {
        partition.leader_id
        for partition in map(image.partition, partitions)
        if partition is not None
    }
    return [
        LeaderHint(broker.broker_id, broker.host, broker.port, broker.rack)
        for broker in (image.brokers[leader] for leader in sorted(leaders & image.brokers.keys()))
    ]

"""The addresses of the current leaders, for clients that used another broker (KIP-951)."""

from collections.abc import Iterable

from quorumlog.metadata_quorum.image import BrokerImage, ClusterImage
from quorumlog.wire.codec.identifiers import TopicPartition


def leader_hints(image: ClusterImage, partitions: Iterable[TopicPartition]) -> list[BrokerImage]:
    """Return the brokers that lead these partitions, each once, sorted by id."""
    leaders = {
        partition.leader_id
        for partition in map(image.partition, partitions)
        if partition is not None
    }
    return [image.brokers[leader] for leader in sorted(leaders & image.brokers.keys())]

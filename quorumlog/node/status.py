"""A node's view of itself and of the cluster, as plain values for JSON."""

from collections.abc import Mapping
from typing import Any

from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.metadata_quorum.io.metadata_quorum import MetadataQuorum
from quorumlog.node.config import NodeConfig


def describe(
    config: NodeConfig, quorum: MetadataQuorum, *, is_ready: bool, requests: Mapping[int, int]
) -> dict[str, Any]:
    """Return this node's view. `requests`: number of requests served by its broker, by API key."""
    image = quorum.image
    return {
        "node_id": config.node_id,
        "cluster_id": config.cluster_id,
        "ready": is_ready,
        "controller_id": image.controller_id,
        "metadata_offset": image.end_offset,
        "quorum": dict(quorum.describe()),
        "directory_ids": {
            str(broker_id): broker.directory_id for broker_id, broker in image.brokers.items()
        },
        "fenced": {str(broker_id): broker.fenced for broker_id, broker in image.brokers.items()},
        "topics": _topics(image),
        "requests": dict(requests),
    }


def _topics(image: ClusterImage) -> dict[str, Any]:
    return {
        name: {
            "partitions": [
                {
                    "leader": partition.leader_id,
                    "leader_epoch": partition.leader_epoch,
                    "partition_epoch": partition.partition_epoch,
                    "isr": list(partition.isr),
                    "elr": list(partition.elr),
                    "last_known_elr": list(partition.last_known_elr),
                    "replicas": list(partition.replicas),
                }
                for partition in topic.partitions
            ]
        }
        for name, topic in image.topics.items()
    }

"""The metadata as the rest of the cluster sees it: frozen, because it crosses a border.

A broker replays the committed metadata log into a `ClusterImage`; each commit publishes the new
image with a `ClusterDelta` that names what changed. Source: KIP-631, KIP-500.
"""

from quorumlog.metadata_quorum.image.access import AccessImage
from quorumlog.metadata_quorum.image.model import (
    LOST,
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    ImagePublisher,
    PartitionImage,
    TopicImage,
)

__all__ = [
    "LOST",
    "AccessImage",
    "BrokerImage",
    "ClusterDelta",
    "ClusterImage",
    "ImagePublisher",
    "PartitionImage",
    "TopicImage",
]

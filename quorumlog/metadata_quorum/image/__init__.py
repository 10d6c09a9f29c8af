"""Images of the committed metadata, for the broker; frozen, because they cross a border.

A broker replays the committed metadata log into a `ClusterImage`. Each commit publishes the new
image with a `ClusterDelta`, the names of the changed items. Source: KIP-631, KIP-500.
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

"""The committed metadata: replayed into an image, and published in order."""

from typing import Final

from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage, ImagePublisher
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicPartition


class CommittedImage:
    """The metadata that this node may act on. A published image is never taken back."""

    def __init__(self, log: MetadataLog) -> None:
        self.image = ClusterImage()
        self._log: Final = log
        self._replay: Final = ClusterReplay(self.image)
        self._publishers: list[ImagePublisher] = []

    def add_publisher(self, publisher: ImagePublisher) -> None:
        """Publish to it, too; first, as one change, all that was published before."""
        self._publishers.append(publisher)
        if self.image.end_offset > 0:
            publisher.publish(everything_in(self.image), self.image)

    def advance(self, high_watermark: Offset) -> None:
        """Replay what is committed now, and publish it as one change."""
        if high_watermark <= self.image.end_offset:
            return
        for offset, record in self._log.replay(self.image.end_offset, high_watermark):
            self._replay.apply(offset, record)
        self._publish(high_watermark, self.image.epoch, self.image.controller_id)

    def lead_by(self, leader_id: BrokerId, leader_epoch: Epoch) -> None:
        """Note the leader of the quorum, as far as this node knows it."""
        if (leader_epoch, leader_id) != (self.image.epoch, self.image.controller_id):
            self._publish(self.image.end_offset, leader_epoch, leader_id)

    def _publish(self, end_offset: Offset, epoch: Epoch, controller_id: BrokerId) -> None:
        delta, self.image = self._replay.publish(
            end_offset=end_offset, epoch=epoch, controller_id=controller_id
        )
        for publisher in self._publishers:
            publisher.publish(delta, self.image)


def everything_in(image: ClusterImage) -> ClusterDelta:
    """Return the delta between an empty cluster and `image`."""
    return ClusterDelta(
        brokers=frozenset(image.brokers),
        partitions=frozenset(
            TopicPartition(topic.name, index)
            for topic in image.topics.values()
            for index in range(len(topic.partitions))
        ),
        topic_configs=frozenset(name for name, topic in image.topics.items() if topic.configs),
    )

"""Counts the changes of partition leaders that this node has seen in the metadata."""

from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage


class ElectionCounts:
    """An ImagePublisher. Totals since the start; the metadata found at the start does not count.

    `unclean`: the elections of replicas outside the ISR, which may have lost records (KIP-704).
    """

    def __init__(self) -> None:
        self.elections = self.unclean = 0
        self._image = ClusterImage()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Compare the changed partitions with the last image."""
        before, self._image = self._image, image
        for at in delta.partitions:
            old, new = before.partition(at), image.partition(at)
            if old is None or new is None or new.leader_epoch <= old.leader_epoch:
                continue
            if before.topics[at.topic].topic_id != image.topics[at.topic].topic_id:
                continue  # another topic of this name
            self.elections += new.leader_id >= 0
            self.unclean += new.is_recovering and not old.is_recovering

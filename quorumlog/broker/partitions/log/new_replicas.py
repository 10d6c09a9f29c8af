"""Which replicas never were on this broker before: their logs may be made anywhere."""

from typing import Final

from quorumlog.broker.partitions.core.placement import Standing, standing_of
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition


class NewReplicas:
    """Compares images. What the first one shows may have been here in an earlier life."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id: Final = broker_id
        self._is_first = True
        self._new: Final[set[TopicPartition]] = set()

    def __contains__(self, at: TopicPartition) -> bool:
        return at in self._new

    def note(self, delta: ClusterDelta, before: ClusterImage, after: ClusterImage) -> None:
        """Take in the next image."""
        if not self._is_first:
            self._new.update(at for at in delta.partitions if self._is_new(at, before, after))
        self._is_first = False

    def forget(self, at: TopicPartition) -> None:
        """Take note that a replica is here, or is not to be here any more."""
        self._new.discard(at)

    def standing_of(self, at: TopicPartition, partition: PartitionImage) -> Standing:
        """Return which replicas are known to have all of a partition whose log is opened."""
        return standing_of(partition, self._broker_id, is_new=at in self._new)

    def _is_new(self, at: TopicPartition, before: ClusterImage, after: ClusterImage) -> bool:
        partition = before.partition(at)
        was, is_now = before.topics.get(at.topic), after.topics.get(at.topic)
        if partition is None or was is None or self._broker_id not in partition.replicas:
            return True
        return is_now is not None and was.topic_id != is_now.topic_id

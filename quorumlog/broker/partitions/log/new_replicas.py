"""The replicas that this broker never had before: their logs may be created in any directory."""

from typing import Final

from quorumlog.broker.partitions.core.placement import Standing, standing_of
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition


class NewReplicas:
    """Compares images. Replicas of the first image may have been here in an earlier process."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id: Final = broker_id
        self._is_first = True
        self._new: Final[set[TopicPartition]] = set()

    def __contains__(self, at: TopicPartition) -> bool:
        return at in self._new

    def note(self, delta: ClusterDelta, before: ClusterImage, after: ClusterImage) -> None:
        """Apply the next image."""
        if not self._is_first:
            self._new.update(at for at in delta.partitions if self._is_new(at, before, after))
        self._is_first = False

    def forget(self, at: TopicPartition) -> None:
        """Drop a replica that is open here, or that is not to be here any more."""
        self._new.discard(at)

    def standing_of(self, at: TopicPartition, partition: PartitionImage) -> Standing:
        """Return the standing of a replica whose log is about to be opened."""
        return standing_of(partition, self._broker_id, is_new=at in self._new)

    def _is_new(self, at: TopicPartition, before: ClusterImage, after: ClusterImage) -> bool:
        partition = before.partition(at)
        was, is_now = before.topics.get(at.topic), after.topics.get(at.topic)
        if partition is None or was is None or self._broker_id not in partition.replicas:
            return True
        return is_now is not None and was.topic_id != is_now.topic_id

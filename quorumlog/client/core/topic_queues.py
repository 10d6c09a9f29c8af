"""The partitions of one topic for a producer: their queues, and the choice among them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from quorumlog.client.core.accumulator import PartitionQueue
from quorumlog.client.core.metadata_cache import MetadataCache, TopicView
from quorumlog.client.core.partitioner import StickyPartition


class TopicQueues:
    """The state of one topic for `send`.

    `count`: the number of partitions. `candidates`: those for records without a key, the
    partitions with a leader if there are any. `queues`: of the partitions that were sent to.
    """

    __slots__ = ("candidates", "count", "queues", "sticky")

    def __init__(self, batch_size: int) -> None:
        self.count = 0
        self.candidates: Sequence[int] = ()  # a tuple: a partitioner of the user gets it
        self.sticky: Final = StickyPartition(batch_size)
        self.queues: Final[dict[int, PartitionQueue]] = {}

    def refresh(self, view: TopicView) -> None:
        """Apply the topic's new metadata."""
        self.count = len(view.partitions)
        led = [index for index, partition in view.partitions.items() if partition.leader_id >= 0]
        self.candidates = tuple(led or view.partitions)
        if self.sticky.current not in self.candidates:
            self.sticky.give_up()

    def sticky_partition(self, size: int, random_fraction: Callable[[], float]) -> int:
        """Return the partition of a record of `size` bytes that has no key."""
        sticky = self.sticky
        if sticky.needs_choice():
            sticky.choose(self.candidates, random_fraction())
        sticky.used(size)
        return sticky.current


def refresh_all(topics: Mapping[str, TopicQueues], metadata: MetadataCache) -> None:
    """Apply new metadata to the topics that it has."""
    for name, topic in topics.items():
        view = metadata.topics.get(name)
        if view is not None:
            topic.refresh(view)

"""The shards of one internal topic: one for each partition that this broker leads."""

from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from quorumlog.broker.coordination.core.coordinator import Coordinator, CoordinatorRequest
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard, Phase
from quorumlog.broker.coordination.core.events import BecameLeader, Resigned, Stopped
from quorumlog.broker.coordination.core.partition_hash import partition_for
from quorumlog.broker.coordination.driver.shard_driver import ShardDependencies, ShardDriver
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, BrokerId, Epoch, TopicPartition

R = TypeVar("R")
CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)


class ShardSet(Generic[CoordinatorT]):
    """Invariant: one shard per led partition of the topic, at the newest leader epoch received.

    A leader epoch older than the shard's changes nothing (KAFKA-18137). Epochs of other partitions
    are not kept: a re-created topic starts at epoch 0.
    """

    def __init__(
        self,
        topic: str,
        *,
        partitions: int,
        new_shard: Callable[[], CoordinatorShard[CoordinatorT]],
        dependencies: ShardDependencies,
    ) -> None:
        """`partitions`: the count to use until the topic exists."""
        self.topic: Final = topic
        self._partitions = partitions
        self._new_shard: Final = new_shard
        self._dependencies: Final = dependencies
        self._last_request_id = 0  # unique in all shards: a closed shard's effects may end later
        self._drivers: Final[dict[TopicPartition, ShardDriver[CoordinatorT]]] = {}

    # --- Leadership ---

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load a partition of the topic; keep a loaded coordinator if only the epoch rose."""
        if topic_partition.topic == self.topic:
            driver = self._drivers.get(topic_partition) or self._open(topic_partition)
            driver.feed(BecameLeader(leader_epoch=leader_epoch))

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Drop the partition's coordinator: clients get NOT_COORDINATOR."""
        driver = self._drivers.get(topic_partition)
        if driver is not None:
            driver.feed(Resigned(leader_epoch=leader_epoch))
            if driver.shard.phase is Phase.CLOSED:
                del self._drivers[topic_partition]

    def count_partitions(self, image: ClusterImage) -> None:
        """Update the number of partitions of the topic."""
        topic = image.topics.get(self.topic)
        if topic is not None:
            self._partitions = len(topic.partitions)

    def stop(self) -> None:
        """Drop all coordinators; answer every open request NOT_COORDINATOR."""
        self.feed_all(Stopped())
        self._drivers.clear()

    def _open(self, topic_partition: TopicPartition) -> ShardDriver[CoordinatorT]:
        driver = ShardDriver(topic_partition, self._new_shard(), self._dependencies)
        self._drivers[topic_partition] = driver
        return driver

    # --- Coordinators ---

    def partition_of(self, key: str) -> TopicPartition:
        """Return the partition of a group id or a transactional id."""
        return TopicPartition(self.topic, partition_for(key, self._partitions))

    def leader_epoch(self, topic_partition: TopicPartition) -> Epoch:
        """Return the leader epoch of a partition's coordinator; -1: not on this broker."""
        driver = self._drivers.get(topic_partition)
        return NO_EPOCH if driver is None else driver.shard.leader_epoch

    def agrees_with(
        self, image: ClusterImage, broker_id: BrokerId, topic_partition: TopicPartition
    ) -> bool:
        """Whether the image shows the leadership of the partition's coordinator, if it is here.

        Leadership follows the image in slices, so a difference is short-lived.
        """
        epoch, partition = self.leader_epoch(topic_partition), image.partition(topic_partition)
        shown = None if partition is None else (partition.leader_id, partition.leader_epoch)
        return epoch == NO_EPOCH or shown == (broker_id, epoch)

    def serve(
        self,
        topic_partition: TopicPartition,
        request: CoordinatorRequest[R],
        answer: Callable[[R], None],
    ) -> None:
        """Let the coordinator handle a request; `answer` gets the response, now or later.

        NOT_COORDINATOR: the partition's coordinator is not on this broker.
        """
        driver = self._drivers.get(topic_partition)
        if driver is None:
            answer(request.refuse(ErrorCode.NOT_COORDINATOR))
        else:
            self._last_request_id += 1
            driver.serve(self._last_request_id, request, answer)

    def coordinator(self, key: str) -> CoordinatorT | ErrorCode:
        """Return the coordinator of the key, for reading; or the error if it does not serve."""
        driver = self._drivers.get(self.partition_of(key))
        return ErrorCode.NOT_COORDINATOR if driver is None else driver.shard.coordinator

    def coordinators(self) -> Iterator[CoordinatorT | ErrorCode]:
        """Yield the coordinator of each led partition, or the error if it does not serve."""
        for _, driver in sorted(self._drivers.items()):
            yield driver.shard.coordinator

    def check_progress(self) -> None:
        """Raise InvariantViolation if a coordinator waits, and nothing will end that."""
        for _, driver in sorted(self._drivers.items()):
            driver.check_progress()

    def feed(self, topic_partition: TopicPartition, event: Any) -> None:
        """Feed an event to the coordinator of a partition, if it is on this broker."""
        driver = self._drivers.get(topic_partition)
        if driver is not None:
            driver.feed(event)

    def feed_all(self, event: Any) -> None:
        """Feed an event to all coordinators."""
        for _, driver in sorted(self._drivers.items()):
            driver.feed(event)

    def clock_advanced(self, by_ms: int) -> None:
        """Check the expiries of all coordinators, after `now_ms` has jumped."""
        for _, driver in sorted(self._drivers.items()):
            driver.clock_advanced(by_ms)

"""The shards of one internal topic: one for each partition that this broker leads."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, TypeVar

from quorumlog.broker.coordination.core.coordinator import Coordinator, CoordinatorRequest
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard, Phase
from quorumlog.broker.coordination.core.effects import OwnEffect
from quorumlog.broker.coordination.core.events import BecameLeader, Resigned, Stopped
from quorumlog.broker.coordination.core.partitioning import partition_for
from quorumlog.broker.coordination.io.shard_driver import CoordinatorLog, ShardDriver
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, TopicPartition

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
        replicas: CoordinatorLog,
        new_coordinator: Callable[[], CoordinatorT],
        load_buffer_bytes: int,
        on_fatal: Callable[[InvariantViolation], None],
        perform_own: Callable[[TopicPartition, OwnEffect], None],
        wall_ms: Callable[[], int],
        shard: type[CoordinatorShard[CoordinatorT]] = CoordinatorShard,
    ) -> None:
        """`partitions`: the count to use until the topic exists. Mutants replace `shard`."""
        self.topic: Final = topic
        self._partitions = partitions
        self._replicas, self._new_coordinator = replicas, new_coordinator
        self._load_buffer_bytes, self._on_fatal = load_buffer_bytes, on_fatal
        self._perform_own, self._wall_ms, self._shard = perform_own, wall_ms, shard
        self._started_ms: float | None = None
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
        driver = self._drivers[topic_partition] = ShardDriver(
            topic_partition,
            replicas=self._replicas,
            new_coordinator=self._new_coordinator,
            load_buffer_bytes=self._load_buffer_bytes,
            now_ms=self.now_ms,
            on_fatal=self._on_fatal,
            perform_own=partial(self._perform_own, topic_partition),
            shard=self._shard,
        )
        return driver

    # --- Coordinators ---

    def partition_of(self, key: str) -> TopicPartition:
        """Return the partition of a group id or a transactional id."""
        return TopicPartition(self.topic, partition_for(key, self._partitions))

    def leader_epoch(self, topic_partition: TopicPartition) -> Epoch:
        """Return the leader epoch of a partition's coordinator; -1: not on this broker."""
        driver = self._drivers.get(topic_partition)
        return NO_EPOCH if driver is None else driver.shard.leader_epoch

    def ask(
        self, topic_partition: TopicPartition, request: CoordinatorRequest[R]
    ) -> asyncio.Future[R]:
        """Return the response of a partition's coordinator; NOT_COORDINATOR: not on this broker."""
        driver = self._drivers.get(topic_partition)
        if driver is not None:
            return driver.ask(request)
        refusal: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        refusal.set_result(request.refuse(ErrorCode.NOT_COORDINATOR))
        return refusal

    def coordinator(self, key: str) -> CoordinatorT | ErrorCode:
        """Return the coordinator of the key, for reading; or the error if it does not serve."""
        driver = self._drivers.get(self.partition_of(key))
        return ErrorCode.NOT_COORDINATOR if driver is None else driver.shard.coordinator

    def coordinators(self) -> Iterator[CoordinatorT | ErrorCode]:
        """Yield the coordinator of each led partition, or the error if it does not serve."""
        for _, driver in sorted(self._drivers.items()):
            yield driver.shard.coordinator

    def feed(self, topic_partition: TopicPartition, event: Any) -> None:
        """Feed an event to the coordinator of a partition, if it is on this broker."""
        driver = self._drivers.get(topic_partition)
        if driver is not None:
            driver.feed(event)

    def feed_all(self, event: Any) -> None:
        """Feed an event to all coordinators."""
        for _, driver in sorted(self._drivers.items()):
            driver.feed(event)

    def now_ms(self) -> int:
        """Return the wall-clock time of the start plus the monotonic time since then."""
        elapsed_ms = asyncio.get_running_loop().time() * 1000
        if self._started_ms is None:
            self._started_ms = self._wall_ms() - elapsed_ms
        return int(self._started_ms + elapsed_ms)

"""Routes group requests to the partitions of `__consumer_offsets` that this broker leads.

It is a LeadershipListener (which partitions) and an ImagePublisher (which topics are gone).
Source: KIP-62; the coordinator of a group is the leader of its partition.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from quorumlog.broker.coordination.io.coordinator_shard import CoordinatorLog, CoordinatorShard
from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.partitioning import partition_for_group
from quorumlog.broker.groups.core.requests import GroupRequest
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC

R = TypeVar("R")
GroupShard = CoordinatorShard[GroupCoordinator]


class GroupService:
    """The group shards of this broker.

    Invariant: one shard per partition that this broker leads, of the newest known leader epoch.
    An older epoch than that of a shard changes nothing (KAFKA-18137). The service remembers nothing
    of other partitions: a topic that is created again starts at epoch 0.
    """

    def __init__(
        self,
        *,
        replicas: CoordinatorLog,
        settings: BrokerSettings,
        wall_ms: Callable[[], int],
        on_fatal: Callable[[InvariantViolation], None],
    ) -> None:
        self._replicas, self._settings, self._on_fatal = replicas, settings, on_fatal
        self._wall_ms = wall_ms
        self._started_ms: float | None = None
        self._partitions = settings.offsets_topic_num_partitions
        self._shards: Final[dict[TopicPartition, GroupShard]] = {}

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load the groups of the partition; keep loaded groups if only the epoch rose."""
        if topic_partition.topic != OFFSETS_TOPIC:
            return
        shard = self._shards.get(topic_partition)
        if shard is None:
            shard = self._open(topic_partition)
        shard.leader_epoch = max(shard.leader_epoch, leader_epoch)

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Forget the groups of the partition: members get NOT_COORDINATOR."""
        shard = self._shards.get(topic_partition)
        if shard is not None and leader_epoch >= shard.leader_epoch:
            del self._shards[topic_partition]
            shard.close()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Count the partitions of the offsets topic; forget the offsets of deleted topics."""
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            self._partitions = len(topic.partitions)
        deleted = tuple(sorted(delta.deleted_topics))
        if deleted:
            for _, shard in sorted(self._shards.items()):
                shard.feed(events.TopicsDeleted(topics=deleted))

    def partition_of(self, group_id: str) -> TopicPartition:
        """Return the partition of the offsets topic that holds the group."""
        return TopicPartition(OFFSETS_TOPIC, partition_for_group(group_id, self._partitions))

    def ask(self, request: GroupRequest[R]) -> asyncio.Future[R]:
        """Return the answer of the group's coordinator, or NOT_COORDINATOR if that is elsewhere."""
        shard = self._shards.get(self.partition_of(request.group_id))
        if shard is not None:
            return shard.ask(request)
        refusal: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        refusal.set_result(request.refuse(ErrorCode.NOT_COORDINATOR))
        return refusal

    def coordinator(self, group_id: str) -> GroupCoordinator | ErrorCode:
        """Return the coordinator of the group, for reading; or why there is none here."""
        shard = self._shards.get(self.partition_of(group_id))
        return ErrorCode.NOT_COORDINATOR if shard is None else shard.coordinator

    def coordinators(self) -> Iterator[GroupCoordinator | ErrorCode]:
        """Yield the coordinator of each partition that we lead, or why it does not answer."""
        for _, shard in sorted(self._shards.items()):
            yield shard.coordinator

    def stop(self) -> None:
        """Forget all groups; answer every open request NOT_COORDINATOR."""
        for shard in self._shards.values():
            shard.close()
        self._shards.clear()

    def _open(self, topic_partition: TopicPartition) -> GroupShard:
        shard = CoordinatorShard(
            topic_partition,
            replicas=self._replicas,
            coordinator=GroupCoordinator(self._settings),
            load_buffer_bytes=self._settings.offsets_load_buffer_size,
            now_ms=self._steady_ms,
            on_fatal=self._on_fatal,
            on_lost=self._load_again,
        )
        self._shards[topic_partition] = shard
        return shard

    def _load_again(self, lost: GroupShard) -> None:
        if self._shards.get(lost.topic_partition) is lost:
            self._open(lost.topic_partition).leader_epoch = lost.leader_epoch

    def _steady_ms(self) -> int:
        """Return the wall-clock time of the start plus the monotonic time since then."""
        elapsed_ms = asyncio.get_running_loop().time() * 1000
        if self._started_ms is None:
            self._started_ms = self._wall_ms() - elapsed_ms
        return int(self._started_ms + elapsed_ms)

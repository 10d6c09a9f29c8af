"""Routes group requests to the partitions of `__consumer_offsets` that this broker leads.

It is a LeadershipListener (which partitions) and an ImagePublisher (which topics are gone).
Source: KIP-62; the coordinator of a group is the leader of its partition.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard, Phase
from quorumlog.broker.coordination.core.effects import OwnEffect
from quorumlog.broker.coordination.core.events import BecameLeader, Resigned, Stopped
from quorumlog.broker.coordination.core.partitioning import partition_for
from quorumlog.broker.coordination.io.shard_driver import CoordinatorLog, ShardDriver
from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.consumer.topics import TopicDescription, Topics
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import MakeTarget, VerifyTransaction
from quorumlog.broker.groups.core.requests import CompleteTransaction, GroupRequest
from quorumlog.broker.groups.io.target_thread import TargetThread
from quorumlog.broker.groups.io.topic_expressions import Re2Matcher
from quorumlog.broker.partitions.io.transaction_verifier import TransactionVerifier
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import wall_clock_ms
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from quorumlog.wire.codec.transaction_markers import TransactionMarker

R = TypeVar("R")


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
        verifier: TransactionVerifier,
        wall_ms: Callable[[], int] = wall_clock_ms,
        on_fatal: Callable[[InvariantViolation], None],
        coordinator: type[GroupCoordinator] = GroupCoordinator,
        shard: type[CoordinatorShard[GroupCoordinator]] = CoordinatorShard,
    ) -> None:
        """`coordinator` and `shard` are other ones only where a mutant breaks a rule of them."""
        self._replicas, self._settings, self._on_fatal = replicas, settings, on_fatal
        self._verifier, self._wall_ms = verifier, wall_ms
        self._coordinator, self._shard = coordinator, shard
        self._started_ms: float | None = None
        self._partitions = settings.offsets_topic_num_partitions
        self._topics: Final = Topics(Re2Matcher())
        self._drivers: Final[dict[TopicPartition, ShardDriver[GroupCoordinator]]] = {}
        self._targets: Final = TargetThread(on_fatal)

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load the groups of the partition; keep loaded groups if only the epoch rose."""
        if topic_partition.topic == OFFSETS_TOPIC:
            driver = self._drivers.get(topic_partition) or self._open(topic_partition)
            driver.feed(BecameLeader(leader_epoch=leader_epoch))

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Forget the groups of the partition: members get NOT_COORDINATOR."""
        driver = self._drivers.get(topic_partition)
        if driver is not None:
            driver.feed(Resigned(leader_epoch=leader_epoch))
            if driver.shard.phase is Phase.CLOSED:
                del self._drivers[topic_partition]

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Count the partitions of the offsets topic; tell the groups of changed topics."""
        topic = image.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            self._partitions = len(topic.partitions)
        deleted = tuple(sorted(delta.deleted_topics))
        if deleted:
            for _, driver in sorted(self._drivers.items()):
                driver.feed(events.TopicsDeleted(topics=deleted))
        self._note_topics(delta, image)

    def _note_topics(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Let consumer groups know of topics that came, went or grew."""
        changed: dict[str, TopicDescription | None] = {}
        for name in {where.topic for where in delta.partitions}.union(delta.deleted_topics):
            topic, found = image.topics.get(name), None
            if topic is not None:
                found = TopicDescription(topic.topic_id, len(topic.partitions))
            if found != self._topics.by_name.get(name):
                changed[name] = found
        if changed:
            self._topics.change(image.end_offset, changed)
            for _, driver in sorted(self._drivers.items()):
                driver.feed(events.TopicsChanged(names=changed.keys()))

    def partition_of(self, group_id: str) -> TopicPartition:
        """Return the partition of the offsets topic that holds the group."""
        return TopicPartition(OFFSETS_TOPIC, partition_for(group_id, self._partitions))

    def ask(self, request: GroupRequest[R]) -> asyncio.Future[R]:
        """Return the answer of the group's coordinator, or NOT_COORDINATOR if that is elsewhere."""
        driver = self._drivers.get(self.partition_of(request.group_id))
        if driver is not None:
            return driver.ask(request)
        refusal: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        refusal.set_result(request.refuse(ErrorCode.NOT_COORDINATOR))
        return refusal

    def end_transaction(
        self, topic_partition: TopicPartition, marker: TransactionMarker
    ) -> asyncio.Future[ErrorCode]:
        """Write the marker in a partition of `__consumer_offsets`.

        The answer comes once it is committed, and what it commits is visible (KAFKA-17507); an
        error is one of WriteTxnMarkers. A marker that is written again does no harm.
        """
        request = CompleteTransaction(marker=marker)
        driver = self._drivers.get(topic_partition)
        if driver is not None:
            return driver.ask(request)
        refusal: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        refusal.set_result(request.refuse(ErrorCode.NOT_COORDINATOR))
        return refusal

    def coordinator(self, group_id: str) -> GroupCoordinator | ErrorCode:
        """Return the coordinator of the group, for reading; or why there is none here."""
        driver = self._drivers.get(self.partition_of(group_id))
        return ErrorCode.NOT_COORDINATOR if driver is None else driver.shard.coordinator

    def coordinators(self) -> Iterator[GroupCoordinator | ErrorCode]:
        """Yield the coordinator of each partition that we lead, or why it does not answer."""
        for _, driver in sorted(self._drivers.items()):
            yield driver.shard.coordinator

    def stop(self) -> None:
        """Forget all groups; answer every open request NOT_COORDINATOR."""
        for driver in self._drivers.values():
            driver.feed(Stopped())
        self._drivers.clear()
        self._targets.stop()

    def _open(self, topic_partition: TopicPartition) -> ShardDriver[GroupCoordinator]:
        driver = self._drivers[topic_partition] = ShardDriver(
            topic_partition,
            replicas=self._replicas,
            new_coordinator=partial(self._coordinator, self._settings, topics=self._topics),
            load_buffer_bytes=self._settings.offsets_load_buffer_size,
            now_ms=self._steady_ms,
            on_fatal=self._on_fatal,
            perform_own=partial(self._perform_own, topic_partition),
            shard=self._shard,
        )
        return driver

    def _perform_own(self, topic_partition: TopicPartition, effect: OwnEffect) -> None:
        def feed(event: events.Event) -> None:
            driver = self._drivers.get(topic_partition)
            if driver is not None:
                driver.feed(event)

        match effect:
            case VerifyTransaction():
                self._verify(topic_partition, effect, feed)
            case MakeTarget():
                self._targets.perform(effect, feed)
            case _:
                raise InvariantViolation(f"not an effect of groups: {effect}")

    def _verify(
        self,
        topic_partition: TopicPartition,
        effect: VerifyTransaction,
        feed: Callable[[events.Event], None],
    ) -> None:
        """Have a transaction verified, as its producer's version of TxnOffsetCommit asks."""
        request = effect.request

        def verified(error_code: ErrorCode) -> None:
            event = events.TransactionVerified(
                request_id=effect.request_id, request=request, error_code=error_code
            )
            feed(event)

        if not (request.adds or self._settings.transaction_partition_verification_enable):
            verified(ErrorCode.NONE)  # as Kafka: the producer has said so itself
            return
        answer = self._verifier.verify(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [topic_partition],
            adds=request.adds,
        )
        answer.add_done_callback(lambda answer: verified(answer.result()[topic_partition]))

    def _steady_ms(self) -> int:
        """Return the wall-clock time of the start plus the monotonic time since then."""
        elapsed_ms = asyncio.get_running_loop().time() * 1000
        if self._started_ms is None:
            self._started_ms = self._wall_ms() - elapsed_ms
        return int(self._started_ms + elapsed_ms)

"""Routes transactional ids to the partitions of `__transaction_state` that this broker leads.

It is a LeadershipListener (which partitions this broker leads) and an ImagePublisher (partition
leaders, deleted topics, the level of `transaction.version`). Source: KIP-98; the coordinator of a
transactional id is the leader of its partition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, TypeVar

from quorumlog.broker.coordination.core.effects import OwnEffect
from quorumlog.broker.coordination.driver.shard_driver import CoordinatorLog
from quorumlog.broker.coordination.io.event_loop_shards import EventLoopShards
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.core import events
from quorumlog.broker.transactions.core.coordinator import TransactionCoordinator
from quorumlog.broker.transactions.core.effects import AllocateProducerId, SendMarkers
from quorumlog.broker.transactions.core.requests import TransactionRequest
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.broker.transactions.io.broker_channels import BrokerChannels, Open, Peers
from quorumlog.broker.transactions.io.coordinator_verifier import CoordinatorVerifier
from quorumlog.broker.transactions.io.marker_questions import MarkerExchange, MarkerQuestion
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.features import TRANSACTION_FEATURE
from quorumlog.tasks import OnError, Tasks
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition
from quorumlog.wire.codec.topic_names import TRANSACTIONS_TOPIC

R = TypeVar("R")

NextProducerId = Callable[[], Awaitable[tuple[ErrorCode, int]]]
"""Returns an unused producer id, or an error that clients understand."""


class TransactionService:
    """The transaction coordinators of this broker; `verifier` uses those of all brokers.

    Invariant: a coordinator adds a partition only while the image has both that partition and
    this broker as the coordinator, in the coordinator's own leader epoch. So an image with a
    later coordinator has had the partition before; if it lacks the partition, it was deleted:
    docs/decisions/0034-transaction-verification.md
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        replicas: CoordinatorLog,
        next_producer_id: NextProducerId,
        peers: Peers,
        settings: BrokerSettings,
        wall_ms: Callable[[], int],
        on_fatal: OnError,
        rules: TransactionRules = SOUND,
    ) -> None:
        """`rules` differ only in a mutant, which breaks one of them."""
        self._broker_id, self._next_producer_id = broker_id, next_producer_id
        self._rules = rules
        self._settings: Final = settings
        self._image = ClusterImage()
        self._tasks: Final = Tasks(on_fatal)
        self._shards: Final = EventLoopShards(
            TRANSACTIONS_TOPIC,
            partitions=settings.transaction_state_log_num_partitions,
            replicas=replicas,
            new_coordinator=self._new_coordinator,
            load_buffer_bytes=settings.transaction_state_log_load_buffer_size,
            on_fatal=on_fatal,
            perform_own=self._perform,
            wall_ms=wall_ms,
        )
        self.became_leader: Final = self._shards.became_leader
        self.resigned: Final = self._shards.resigned
        self.partition_of: Final = self._shards.partition_of
        self._peers: Final = peers
        self._markers: Final = BrokerChannels(MarkerExchange(), peers)
        self.verifier: Final = CoordinatorVerifier(
            partition_of=self.partition_of, settings=settings, peers=peers
        )
        self.coordinator: Final = self._shards.coordinator
        self.coordinators: Final = self._shards.coordinators
        self.check_progress: Final = self._shards.check_progress
        self.now_ms: Final = self._shards.now_ms
        self.advance: Final = self._shards.advance

    def reach_itself_by(self, opener: Open) -> None:
        """Use this opener for connections to this broker itself, from now on."""
        self._peers.shortcuts[self._broker_id] = opener

    # --- Leadership and the image ---

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Apply the new image: leaders, deleted partitions, the level of transaction.version."""
        before, self._image = self._image, image
        self._shards.count_partitions(image)
        self._markers.publish(image)
        self.verifier.publish(image)
        known = (
            TopicPartition(name, index)
            for name in delta.deleted_topics
            if name in before.topics
            for index in range(len(before.topics[name].partitions))
        )
        # A re-created topic of this name may hold records of the transaction: it gets the marker.
        deleted = frozenset(at for at in known if image.partition(at) is None)
        if deleted:
            self._shards.feed_all(events.PartitionsDeleted(partitions=deleted))
        if _level(image) != _level(before):
            changed = events.TransactionVersionChanged(transaction_version=_level(image))
            self._shards.feed_all(changed)

    def _new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(self._settings, _level(self._image), self._rules)

    async def stop(self) -> None:
        """Drop all ids; answer every open request with NOT_COORDINATOR."""
        self._shards.stop()
        await self._markers.stop()
        await self.verifier.stop()
        await self._tasks.stop()

    # --- Requests ---

    def ask(self, request: TransactionRequest[R]) -> asyncio.Future[R]:
        """Return the coordinator's result; NOT_COORDINATOR if another broker leads."""
        where = self.partition_of(request.transactional_id)
        if self._shards.agrees_with(self._image, self._broker_id, where):
            return self._shards.ask(where, request)
        refusal: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        refusal.set_result(request.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return refusal

    # --- Effects ---

    def _perform(self, of: TopicPartition, effect: OwnEffect) -> None:
        match effect:
            case AllocateProducerId(transactional_id=transactional_id):
                self._tasks.start(self._allocate(of, transactional_id))
            case SendMarkers():
                self._send(of, effect)
            case _:
                raise InvariantViolation(f"{effect!r} is no effect of a transaction coordinator")

    async def _allocate(self, of: TopicPartition, transactional_id: str) -> None:
        error_code, producer_id = await self._next_producer_id()
        allocated = events.ProducerIdAllocated(
            transactional_id=transactional_id, producer_id=producer_id, error_code=error_code
        )
        self._shards.feed(of, allocated)

    def _send(self, of: TopicPartition, markers: SendMarkers) -> None:
        """Send markers to existing partitions; report deleted partitions to the coordinator."""
        by_leader, deleted = markers.by_leader(self._image)
        if deleted:
            self._shards.feed(of, events.PartitionsDeleted(partitions=deleted))
        written = partial(self._written, of, markers)
        for leader_id, of_leader in by_leader.items():
            question = MarkerQuestion(markers=markers, partitions=tuple(of_leader), written=written)
            self._markers.ask(leader_id, question)

    def _written(
        self, of: TopicPartition, markers: SendMarkers, errors: Mapping[TopicPartition, ErrorCode]
    ) -> None:
        self._shards.feed(of, markers.written(errors))


def _level(image: ClusterImage) -> int:
    return image.features.get(TRANSACTION_FEATURE, 0)

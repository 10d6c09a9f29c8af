"""The transaction coordinator of one simulated broker, and its requests to other brokers.

It does what `TransactionService`, `CoordinatorVerifier`, `MarkerSender` and the handler of
WriteTxnMarkers do in a real broker. Leaders and coordinators are found by the broker's own image.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.coordination.core.effects import OwnEffect
from quorumlog.broker.partitions.core.data_path import ACKS_ALL, ProduceDone, ProduceResult
from quorumlog.broker.partitions.log.verified_appends import ClientTransaction
from quorumlog.broker.transactions.core import events
from quorumlog.broker.transactions.core.coordinator import TransactionCoordinator
from quorumlog.broker.transactions.core.effects import AllocateProducerId, SendMarkers
from quorumlog.broker.transactions.core.requests import (
    AddPartitions,
    ProducerIdAndEpoch,
    Request,
)
from quorumlog.chaos.simulation.kernel.network import Network
from quorumlog.chaos.simulation.worlds.brokers.broker_node import PRODUCE_TIMEOUT_MS, BrokerNode
from quorumlog.chaos.simulation.worlds.brokers.controller_node import CONTROLLER_ID
from quorumlog.chaos.simulation.worlds.brokers.shard_host import Answer, ShardHost
from quorumlog.chaos.simulation.worlds.transactions.messages import Messages
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.topic_names import TRANSACTIONS_TOPIC
from quorumlog.wire.codec.transaction_markers import TransactionMarker

STATE: Final = TopicPartition(TRANSACTIONS_TOPIC, 0)
"""Where all transactional ids live."""

TransactionShard = CoordinatorShard[TransactionCoordinator]
NO_ID_US: Final = 500_000  # until a broker gives up getting a producer id
VERIFY_AGAIN_US: Final = 20_000
VERIFIED_AGAIN_MAX: Final = 5
VERIFYING_VERSION: Final = 5  # of AddPartitionsToTxn, between brokers
UNKNOWN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the coordinator's metadata are behind ours
    }
)


class TransactionBroker:
    """The Coordinators of a BrokerNode. `hosted` has the coordinator of `STATE`."""

    def __init__(
        self,
        node: BrokerNode,
        brokers: "Mapping[int, TransactionBroker]",
        messages: Messages,
        network: Network,
        *,
        new_coordinator: Callable[[], TransactionCoordinator],
        next_producer_id: Callable[[], int],
        markers_may_come_late: bool,
        marker_timeout_us: int,
        places: Sequence[TopicPartition],
    ) -> None:
        """`brokers` are all of them, also those that are not made yet."""
        self.node: Final = node
        self._brokers: Final = brokers
        self._messages: Final = messages
        self._network: Final = network
        self._new_coordinator: Final = new_coordinator
        self._next_producer_id: Final = next_producer_id
        self._markers_may_come_late: Final = markers_may_come_late
        self._marker_timeout_us: Final = marker_timeout_us
        self._places: Final = places
        self.hosted: Final = ShardHost(node, STATE, self._new_shard, self._perform)

    def forget(self) -> None:
        """Forget all: the process starts anew."""
        self.hosted.forget()

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load the transactional ids, if it is their partition."""
        self.hosted.became_leader(topic_partition, leader_epoch)

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Forget the transactional ids, if it is their partition."""
        self.hosted.resigned(topic_partition, leader_epoch)

    def topics_deleted(self, names: Collection[str]) -> None:
        """Do without the markers of their partitions, but for those of new topics."""
        gone = frozenset(at for at in self._lacks(self._places) if at.topic in names)
        self.hosted.feed_all(events.PartitionsDeleted(partitions=gone))

    @property
    def serving(self) -> TransactionCoordinator | None:
        """The coordinator here; None: none serves."""
        coordinator = self.hosted.coordinator_at(STATE)
        return None if isinstance(coordinator, ErrorCode) else coordinator

    def _leader_of(self, at: TopicPartition) -> "TransactionBroker | None":
        """Return the leader as this broker knows it."""
        partition = self.node.replicas.image.partition(at)
        return None if partition is None else self._brokers.get(partition.leader_id)

    # --- Batches of producers ---

    def produce(
        self,
        at: TopicPartition,
        records: bytes,
        done: ProduceDone,
        *,
        transactional_id: str,
        adds: bool,
    ) -> None:
        """Append a batch as the leader. `adds`: the coordinator adds the partition (KIP-890)."""
        transaction = ClientTransaction(
            transactional_id, self._verify, adds=adds, knows_abortable=True
        )
        self.node.appends.append(
            at,
            records,
            acks=ACKS_ALL,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            done=done,
            transaction=transaction,
        )

    def _verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        at: TopicPartition,
        *,
        adds: bool,
        answered: Callable[[ErrorCode | None], None],
    ) -> None:
        question = AddPartitions(
            transactional_id=transactional_id,
            api_version=VERIFYING_VERSION,
            producer=ProducerIdAndEpoch(producer_id, producer_epoch),
            partitions=frozenset({at}),
            verify_only=not adds,
        )
        self._ask_until_known(question, at, answered, VERIFIED_AGAIN_MAX)

    def _ask_until_known(
        self,
        question: AddPartitions,
        at: TopicPartition,
        answered: Callable[[ErrorCode | None], None],
        again: int,
    ) -> None:
        """Ask; to add, wait a little for the markers of the producer's last transaction."""

        def received(result: Any) -> None:
            code = None if result is None else result.partitions[at]
            is_concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS
            if is_concurrent and not question.verify_only and again:
                asked = self._ask_until_known, question, at, answered, again - 1
                self.hosted.soon(*asked, after_us=VERIFY_AGAIN_US)
            elif code in UNKNOWN or (is_concurrent and question.verify_only):
                answered(None)
            else:
                is_fenced = code is ErrorCode.PRODUCER_FENCED
                answered(ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else code)

        self._ask_coordinator(question, received)

    # --- Asking a coordinator ---

    def _ask_coordinator(self, question: AddPartitions, answered: Answer) -> None:
        coordinator = self._leader_of(STATE)
        if coordinator is None:
            self._messages.ask(self.node, None, lambda _: None, answered, may_come_late=True)
            return
        handle = partial(coordinator.ask, question)
        self._messages.ask(
            self.node, coordinator.node, handle, answered, may_come_late=True, may_straggle=True
        )

    def ask(self, request: Request, answer: Answer) -> None:
        """Give the answer of the coordinator here: now, or once it is committed."""
        image = self.node.replicas.image
        if image.partition(STATE) is None:
            answer(request.refuse(ErrorCode.NOT_COORDINATOR))
            return
        if isinstance(request, AddPartitions) and self._lacks(request.partitions):
            answer(request.refuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        if self.hosted.agrees_with(image, self.node.node_id, STATE):
            self.hosted.serve(STATE, request, answer)
        else:
            answer(request.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))

    def _lacks(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return those that the image does not show."""
        image = self.node.replicas.image
        return [at for at in sorted(partitions) if image.partition(at) is None]

    # --- What a coordinator asks for ---

    def _new_shard(self) -> TransactionShard:
        return CoordinatorShard(self._new_coordinator, self.node.machine.now_ms())

    def _perform(self, _at: TopicPartition, effect: OwnEffect) -> None:
        match effect:
            case AllocateProducerId(transactional_id=transactional_id):
                self._allocate(transactional_id)
            case SendMarkers():
                self._send(effect)
            case _:
                raise InvariantViolation(f"{effect!r} is no effect of a transaction coordinator")

    def _allocate(self, transactional_id: str) -> None:
        """Get a producer id, unless the request or the answer is lost."""
        sent = self._network.arrivals_us(self.node.node_id, CONTROLLER_ID)
        answered = self._network.arrivals_us(CONTROLLER_ID, self.node.node_id)
        event = events.ProducerIdAllocated(
            transactional_id=transactional_id, producer_id=self._next_producer_id()
        )
        after_us = NO_ID_US
        if sent and answered and sent[0] + answered[0] < NO_ID_US:
            after_us = sent[0] + answered[0]
        else:
            event = events.ProducerIdAllocated(
                transactional_id=transactional_id, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        self.hosted.soon(self.hosted.feed_all, event, after_us=after_us)

    def _send(self, markers: SendMarkers) -> None:
        """Send the markers to the leaders; tell the coordinator of partitions without a log."""
        by_leader, deleted = markers.by_leader(self.node.replicas.image)
        if deleted:
            self.hosted.feed_all(events.PartitionsDeleted(partitions=deleted))
        for leader_id, places in by_leader.items():
            leader = self._brokers.get(leader_id)
            handle = None if leader is None else partial(leader.write_markers, markers, places)
            self._messages.ask(
                self.node,
                None if leader is None else leader.node,
                handle or (lambda _: None),
                partial(self._written, markers, places),
                may_come_late=self._markers_may_come_late,
                timeout_us=self._marker_timeout_us,
                may_straggle=True,
            )

    def _written(
        self,
        markers: SendMarkers,
        places: Sequence[TopicPartition],
        errors: Mapping[TopicPartition, ErrorCode] | None,
    ) -> None:
        unknown = dict.fromkeys(places, ErrorCode.NETWORK_EXCEPTION)
        self.hosted.feed_all(markers.written(unknown if errors is None else errors))

    # --- What another broker asks for ---

    def write_markers(
        self, markers: SendMarkers, places: Sequence[TopicPartition], answer: Answer
    ) -> None:
        """Write markers as the leader; answer when each is committed, or refused."""
        errors: dict[TopicPartition, ErrorCode] = {}

        def done(at: TopicPartition, result: ProduceResult) -> None:
            errors[at] = result.error_code
            if len(errors) == len(places):
                answer(errors)

        for at in places:
            self._write(markers, at, partial(done, at))

    def _write(self, markers: SendMarkers, at: TopicPartition, done: Callable[[Any], None]) -> None:
        image = self.node.replicas.image
        newest = image.partition(STATE)
        if image.partition(at) is None:
            done(ProduceResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        if newest is None or markers.coordinator_epoch > newest.leader_epoch:
            done(ProduceResult(ErrorCode.UNKNOWN_LEADER_EPOCH))
            return
        marker = TransactionMarker(
            *markers.producer, markers.coordinator_epoch, commits=markers.commit
        )
        self.node.appends.append_marker(
            at, marker, done=done, transaction_version=markers.transaction_version
        )

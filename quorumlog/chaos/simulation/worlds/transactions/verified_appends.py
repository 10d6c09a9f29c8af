"""First batches of transactions, until a coordinator says that these are open (KIP-890).

It does what `VerifiedAppends` and `CoordinatorVerifier` do in a real broker. What may be appended
then, the cores decide.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.broker.partitions.core.data_path import ACKS_ALL, ProduceDone, ProduceResult
from quorumlog.broker.partitions.core.verification import Guard
from quorumlog.broker.transactions.core.requests import AddPartitions, ProducerIdAndEpoch
from quorumlog.chaos.simulation.worlds.brokers.appending import append
from quorumlog.chaos.simulation.worlds.brokers.broker_node import PRODUCE_TIMEOUT_MS, BrokerNode
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import BatchHeader, iterate_headers

ASK_AGAIN_US: Final = 20_000
ASKED_AGAIN_MAX: Final = 5
ASKING_VERSION: Final = 5  # of AddPartitionsToTxn, between brokers
UNKNOWN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # the coordinator's metadata are behind ours
    }
)

AskCoordinator = Callable[[AddPartitions, Callable[[Any], None]], None]
"""Asks the coordinator, wherever it is; None is the answer if it is not heard."""
_Key = tuple[TopicPartition, int]  # and the producer id


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBatch:
    """One batch of a producer. `adds`: its client leaves it to the leader to add the partition."""

    at: TopicPartition
    records: bytes
    transactional_id: str
    adds: bool

    @property
    def header(self) -> BatchHeader:
        """The header of the batch."""
        [(_, header)] = iterate_headers(self.records)
        return header


_Waiting = tuple[ClientBatch, ProduceDone]


class VerifiedAppends:
    """Those of one broker: per partition and producer one question at a time is under way."""

    def __init__(self, node: BrokerNode, ask: AskCoordinator) -> None:
        self._node: Final = node
        self._ask_coordinator: Final = ask
        self._queues: Final[dict[_Key, deque[_Waiting]]] = {}

    def forget(self) -> None:
        """Forget all: the process starts anew."""
        self._queues.clear()

    def append(self, batch: ClientBatch, done: ProduceDone) -> None:
        """Append a batch now, or when its transaction is known to be open."""
        driver = self._node.replicas.drivers.get(batch.at)
        if driver is None or driver.partition.serving.append_refusal(ACKS_ALL):
            self._append(batch, done, None)  # which says why not
            return
        key = batch.at, batch.header.producer_id
        queue = self._queues.get(key)
        if queue is not None:
            queue.append((batch, done))
        elif self._must_ask(batch):
            self._queues[key] = deque([(batch, done)])
            self._ask(key, batch)
        else:
            self._append(batch, done, None)

    def _must_ask(self, batch: ClientBatch) -> bool:
        driver = self._node.replicas.drivers.get(batch.at)
        return driver is not None and driver.producers.must_verify(batch.header)

    def _append(self, batch: ClientBatch, done: ProduceDone, guard: Guard | None) -> None:
        append(
            self._node.replicas,
            batch.at,
            batch.records,
            done,
            now_ms=self._node.machine.now_ms(),
            timeout_ms=PRODUCE_TIMEOUT_MS,
            guard=guard,
        )

    def _ask(self, key: _Key, batch: ClientBatch) -> None:
        header, driver = batch.header, self._node.replicas.drivers[batch.at]
        guard = driver.producers.guards.take(
            header.producer_id, header.producer_epoch, header.base_sequence, adds=batch.adds
        )
        self._ask_until_known(key, guard, batch, ASKED_AGAIN_MAX)

    def _ask_until_known(self, key: _Key, guard: Guard, batch: ClientBatch, again: int) -> None:
        """Ask; to add, wait a little for the markers of the producer's last transaction."""
        header = batch.header
        question = AddPartitions(
            transactional_id=batch.transactional_id,
            api_version=ASKING_VERSION,
            producer=ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
            partitions=frozenset({batch.at}),
            verify_only=not batch.adds,
        )

        def answered(result: Any) -> None:
            code = ErrorCode.NETWORK_EXCEPTION if result is None else result.partitions[batch.at]
            is_concurrent = code is ErrorCode.CONCURRENT_TRANSACTIONS
            if is_concurrent and batch.adds and again:
                asked = (self._ask_until_known, key, guard, batch, again - 1)
                self._node.machine.later(ASK_AGAIN_US, self._node.take, *asked)
                return
            if result is None or code in UNKNOWN or (is_concurrent and not batch.adds):
                code = ErrorCode.NOT_ENOUGH_REPLICAS
            elif code is ErrorCode.PRODUCER_FENCED:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            self._settle(key, guard, code)

        self._ask_coordinator(question, answered)

    def _settle(self, key: _Key, guard: Guard, error_code: ErrorCode) -> None:
        queue = self._queues[key]
        if error_code is ErrorCode.NONE and self._must_ask_again(queue[0][0], guard):
            self._ask(key, queue[0][0])
            return
        batch, done = queue.popleft()
        if error_code is ErrorCode.NONE:
            self._append(batch, done, guard)
        else:
            done(ProduceResult(error_code))
        self._go_on(key)

    def _must_ask_again(self, batch: ClientBatch, guard: Guard) -> bool:
        """Whether a marker came meanwhile that does not concern a batch of a newer epoch."""
        driver = self._node.replicas.drivers.get(batch.at)
        if driver is None or not batch.adds:
            return False
        is_old = not driver.producers.guards.counts(batch.header.producer_id, guard)
        return is_old and self._must_ask(batch)

    def _go_on(self, key: _Key) -> None:
        queue = self._queues[key]
        while queue:
            if self._must_ask(queue[0][0]):
                self._ask(key, queue[0][0])
                return
            self._append(*queue.popleft(), None)
        del self._queues[key]

"""First batches of transactions, until their coordinators have verified them (KIP-890).

A producer's later batches for the same partition wait behind them, in order. Each waiting batch is
a copy of its records. The checks that follow: `core/producer_state.py`, `core/verification.py`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from quorumlog.broker.partitions.core.data_path import ProduceDone, ProduceResult
from quorumlog.broker.partitions.core.verification import Guard, error_for_producer
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.invariants import some
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader

# DEVIATION: Kafka has no limit. docs/decisions/0039-limits.md
UNVERIFIED_BYTES_MAX: Final = 64 << 20
TOO_MUCH_WAITS: Final = f"not appended: {UNVERIFIED_BYTES_MAX} bytes wait for their coordinators"


class TransactionProducer(NamedTuple):
    """The producer of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Verify(Protocol):
    """Sends a verification request to the coordinator of a transactional id."""

    def __call__(
        self,
        producer: TransactionProducer,
        at: TopicPartition,
        *,
        topic_id: TopicId,
        adds: bool,
        answered: Callable[[ErrorCode | None], None],
    ) -> None:
        """Call `answered` once, after the call: NONE if `at` is in the open transaction.

        `topic_id`: of the replica that is to append; a topic of the name with another id refuses.

        With `adds` the coordinator adds the partition first. Otherwise an error that producers
        support; None if the outcome is unknown.
        """


class ClientTransaction(NamedTuple):
    """The transaction of a Produce request.

    `verify`: None if the transaction is not verified. `adds`: the coordinator adds missing
    partitions. `knows_abortable`: the client supports TRANSACTION_ABORTABLE (Produce 11).
    """

    transactional_id: str
    verify: Verify | None
    adds: bool
    knows_abortable: bool


class AdmittedBatch(NamedTuple):
    """One batch that passed admission, and the parameters of its request."""

    at: TopicPartition
    topic_id: TopicId
    records: Buffer
    header: BatchHeader
    acks: int
    timeout_ms: int
    done: ProduceDone
    transaction: ClientTransaction | None = None


_Key = tuple[TopicPartition, int]  # and the producer id


class VerifiedAppends:
    """The waiting batches of this broker: one verification at a time per partition and producer.

    `append` receives the guard of a successful verification, or None without verification.
    """

    def __init__(
        self,
        drivers: Mapping[TopicPartition, PartitionDriver],
        append: Callable[[AdmittedBatch, Guard | None], None],
    ) -> None:
        self._drivers: Final = drivers
        self._append: Final = append
        self._queues: Final[dict[_Key, deque[AdmittedBatch]]] = {}
        self._bytes = 0

    def must_hold(
        self, at: TopicPartition, header: BatchHeader, transaction: ClientTransaction | None
    ) -> bool:
        """Whether a batch waits for a verification, its own or an earlier one."""
        is_queued = (at, header.producer_id) in self._queues
        return is_queued or self._must_verify(at, header, transaction)

    def maybe_hold(self, batch: AdmittedBatch) -> bool:
        """Queue a batch behind a verification if it needs one; False: append it now."""
        if not self.must_hold(batch.at, batch.header, batch.transaction):
            return False
        key = batch.at, batch.header.producer_id
        queue = self._queues.get(key)
        size = len(batch.records)
        if self._bytes + size > UNVERIFIED_BYTES_MAX:
            late = ProduceResult(ErrorCode.REQUEST_TIMED_OUT, error_message=TOO_MUCH_WAITS)
            batch.done(late)
            return True
        self._bytes += size
        kept = batch._replace(records=bytes(batch.records))  # the buffer may be reused
        if queue is not None:
            queue.append(kept)
        else:
            self._queues[key] = deque([kept])
            self._verify(key, kept)
        return True

    def _must_verify(
        self, at: TopicPartition, header: BatchHeader, transaction: ClientTransaction | None
    ) -> bool:
        driver = self._drivers.get(at)
        is_asked = transaction is not None and transaction.verify is not None
        return is_asked and driver is not None and driver.producers.must_verify(header)

    def _must_verify_waiting(self, batch: AdmittedBatch) -> bool:
        return self._must_verify(batch.at, batch.header, batch.transaction)

    def _verify(self, key: _Key, batch: AdmittedBatch) -> None:
        driver, header = self._drivers[batch.at], batch.header
        transaction = some(batch.transaction, "a batch that is verified is of a transaction")
        verify = some(transaction.verify, "a verified transaction has a coordinator")
        guard = driver.producers.guards.take(
            header.producer_id, header.producer_epoch, header.base_sequence, adds=transaction.adds
        )
        producer = TransactionProducer(
            transaction.transactional_id, header.producer_id, header.producer_epoch
        )
        answered = partial(self._answered, key, guard)
        adds = transaction.adds
        verify(producer, batch.at, topic_id=batch.topic_id, adds=adds, answered=answered)

    def _answered(self, key: _Key, guard: Guard, outcome: ErrorCode | None) -> None:
        driver = self._drivers.get(key[0])
        if driver is not None and driver.is_swapping_log:
            driver.hold(partial(self._answered, key, guard, outcome))
            return
        error_code = ErrorCode.NOT_ENOUGH_REPLICAS if outcome is None else outcome
        if error_code is ErrorCode.NONE and self._must_verify_again(self._queues[key][0], guard):
            self._verify(key, self._queues[key][0])
            return
        batch = self._pop(key)
        if error_code is ErrorCode.NONE:
            self._append(batch, guard)
        else:
            transaction = batch.transaction
            knows_abortable = transaction is not None and transaction.knows_abortable
            told = error_for_producer(error_code, knows_abortable=knows_abortable)
            reason = f"the transaction is not verified: {error_code.name}"
            batch.done(ProduceResult(told, error_message=reason))
        self._resume(key)

    def _must_verify_again(self, batch: AdmittedBatch, guard: Guard) -> bool:
        """Whether a marker has released the guard, so that the batch must be verified again.

        A client of transaction.version 2 begins a transaction while the markers of its last
        transaction are under way. The coordinator waits for them before it adds the partition.
        """
        driver, transaction = self._drivers.get(batch.at), batch.transaction
        if driver is None or transaction is None or not transaction.adds:
            return False
        is_old = not driver.producers.guards.counts(batch.header.producer_id, guard)
        return is_old and self._must_verify_waiting(batch)

    def _resume(self, key: _Key) -> None:
        queue = self._queues[key]
        while queue:
            if self._must_verify_waiting(queue[0]):
                self._verify(key, queue[0])
                return
            self._append(self._pop(key), None)
        del self._queues[key]

    def _pop(self, key: _Key) -> AdmittedBatch:
        batch = self._queues[key].popleft()
        self._bytes -= len(batch.records)
        return batch

"""First batches of transactions, until their coordinators have verified them (KIP-890).

A producer's later batches for the same partition wait behind them, in order. Each waiting batch is
a copy of its records. The checks that follow: `core/producer_state.py`, `core/verification.py`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.data_path import ProduceDone, ProduceResult
from quorumlog.broker.partitions.core.verification import Guard, error_for_producer
from quorumlog.broker.partitions.io.transaction_verifier import TransactionVerifier
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.invariants import some
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader

# DEVIATION: Kafka has no limit. docs/decisions/0020-what-a-client-may-leave-waiting.md
UNVERIFIED_BYTES_MAX: Final = 64 << 20
TOO_MUCH_WAITS: Final = f"not appended: {UNVERIFIED_BYTES_MAX} bytes wait for their coordinators"


class ClientTransaction(NamedTuple):
    """The transaction of a Produce request.

    `verifier`: None if the transaction is not verified. `adds`: the coordinator adds missing
    partitions. `knows_abortable`: the client supports TRANSACTION_ABORTABLE (Produce 11).
    """

    transactional_id: str
    verifier: TransactionVerifier | None
    adds: bool
    knows_abortable: bool


class AdmittedBatch(NamedTuple):
    """One batch that passed admission, and the parameters of its request."""

    at: TopicPartition
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

    def take(self, batch: AdmittedBatch) -> bool:
        """Queue a batch for verification if it needs one; False: append it now."""
        key = batch.at, batch.header.producer_id
        queue = self._queues.get(key)
        if queue is None and not self._must_ask(batch):
            return False
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
            self._ask(key, kept)
        return True

    def _must_ask(self, batch: AdmittedBatch) -> bool:
        driver, transaction = self._drivers.get(batch.at), batch.transaction
        is_asked = transaction is not None and transaction.verifier is not None
        return is_asked and driver is not None and driver.producers.must_verify(batch.header)

    def _ask(self, key: _Key, batch: AdmittedBatch) -> None:
        driver, header = self._drivers[batch.at], batch.header
        transaction = some(batch.transaction, "a batch that is verified is of a transaction")
        verifier = some(transaction.verifier, "a verified transaction has a verifier")
        guard = driver.producers.guards.take(
            header.producer_id, header.producer_epoch, header.base_sequence, adds=transaction.adds
        )
        asked = verifier.verify(
            transaction.transactional_id,
            header.producer_id,
            header.producer_epoch,
            [batch.at],
            adds=transaction.adds,
        )
        asked.add_done_callback(partial(self._answered, key, guard))

    def _answered(
        self, key: _Key, guard: Guard, asked: asyncio.Future[Mapping[TopicPartition, ErrorCode]]
    ) -> None:
        driver = self._drivers.get(key[0])
        if driver is not None and driver.is_exchanging:
            driver.hold(partial(self._answered, key, guard, asked))
            return
        is_known = not asked.cancelled() and asked.exception() is None
        error_code = asked.result()[key[0]] if is_known else ErrorCode.NOT_ENOUGH_REPLICAS
        if error_code is ErrorCode.NONE and self._must_ask_again(self._queues[key][0], guard):
            self._ask(key, self._queues[key][0])
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
        self._go_on(key)

    def _must_ask_again(self, batch: AdmittedBatch, guard: Guard) -> bool:
        """Whether a marker has released the guard, so that the batch must be verified again.

        A client of transaction.version 2 begins a transaction while the markers of its last
        transaction are under way. The coordinator waits for them before it adds the partition.
        """
        driver, transaction = self._drivers.get(batch.at), batch.transaction
        if driver is None or transaction is None or not transaction.adds:
            return False
        is_old = not driver.producers.guards.counts(batch.header.producer_id, guard)
        return is_old and self._must_ask(batch)

    def _go_on(self, key: _Key) -> None:
        queue = self._queues[key]
        while queue:
            if self._must_ask(queue[0]):
                self._ask(key, queue[0])
                return
            self._append(self._pop(key), None)
        del self._queues[key]

    def _pop(self, key: _Key) -> AdmittedBatch:
        batch = self._queues[key].popleft()
        self._bytes -= len(batch.records)
        return batch

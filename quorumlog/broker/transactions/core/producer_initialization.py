"""InitProducerId: the producer that may use a transactional id (KIP-98, KIP-360, KIP-588)."""

from dataclasses import dataclass

from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.core.outbox import TransactionOutbox
from quorumlog.broker.transactions.core.records import TransactionMetadata
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    InitProducerId,
    ProducerIdAndEpoch,
    ProducerResult,
)
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction, bumped, is_exhausted
from quorumlog.broker.transactions.core.transaction_end import TransactionEnd
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class ProducerInitialization:
    """Gives out epochs: each new epoch fences all producers with an earlier one."""

    _settings: BrokerSettings
    _outbox: TransactionOutbox
    _ending: TransactionEnd

    def refusal(self, request: InitProducerId) -> ErrorCode:
        """Return the error of the request itself; else NONE."""
        expected = request.expected
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        if (expected.producer_id == NO_PRODUCER_ID) != (expected.epoch == NO_EPOCH):
            return ErrorCode.INVALID_REQUEST
        if request.keep_prepared:
            return ErrorCode.UNSUPPORTED_VERSION
        if request.enable_2pc:  # as in Kafka without 2PC
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if not 0 < request.transaction_timeout_ms <= self._settings.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return ErrorCode.NONE

    def handle(
        self, transaction: Transaction, now_ms: int, request_id: int, request: InitProducerId
    ) -> None:
        """Give the producer an epoch; if a transaction is open, abort it and make the client retry.

        No client gets the epoch of that abort: this client retries, and gets the next epoch.
        """
        error_code = self._busy_or_fenced(transaction, request.expected)
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, request.refuse(error_code))
        elif transaction.state is TransactionState.ONGOING:

            def fenced(_now_ms: int, error_code: ErrorCode) -> None:
                told = error_code or ErrorCode.CONCURRENT_TRANSACTIONS
                self._outbox.reply(request_id, request.refuse(told))

            self._ending.fence(transaction, now_ms, fenced)
        elif transaction.is_new or self._must_rotate(transaction, request.expected):
            self._rotate(transaction, request_id, request)
        else:
            self._resume(transaction, now_ms, request_id, request)

    def _busy_or_fenced(self, transaction: Transaction, expected: ProducerIdAndEpoch) -> ErrorCode:
        """Return the error if the producer must wait or is fenced; else NONE."""
        if transaction.is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if transaction.is_new or expected in {NO_PRODUCER, transaction.producer}:
            return ErrorCode.NONE
        # DEVIATION: Kafka lets any epoch of the producer id abort an open transaction.
        # docs/decisions/0033-transaction-coordinator.md
        is_open = transaction.state is TransactionState.ONGOING
        if not is_open and self._is_retry(transaction, expected):
            return ErrorCode.NONE
        return ErrorCode.PRODUCER_FENCED

    def _is_retry(self, transaction: Transaction, expected: ProducerIdAndEpoch) -> bool:
        """Whether the producer has its new epoch already, but lost the response (KIP-360).

        A producer that begins anew sets the last epoch to -1, so that a fenced producer cannot
        return this way.
        """
        metadata = transaction.metadata
        is_same_id = expected.producer_id == metadata.producer_id
        is_rotated = expected.producer_id == metadata.previous_producer_id and is_exhausted(
            expected.epoch
        )
        return (is_same_id or is_rotated) and expected.epoch == metadata.last_producer_epoch

    def _must_rotate(self, transaction: Transaction, expected: ProducerIdAndEpoch) -> bool:
        """Whether the producer needs a new epoch, but its producer id has none left."""
        is_bump = expected in {NO_PRODUCER, transaction.producer}
        return is_bump and is_exhausted(transaction.producer.epoch)

    def _rotate(self, transaction: Transaction, request_id: int, request: InitProducerId) -> None:
        """Use a new producer id, from epoch 0 on."""
        goes_on = request.expected != NO_PRODUCER and not transaction.is_new
        last_epoch = transaction.producer.epoch if goes_on else NO_EPOCH
        transaction.begin(TransactionState.EMPTY)

        def allocated(now_ms: int, producer_id: int, error_code: ErrorCode) -> None:
            if error_code is not ErrorCode.NONE:
                transaction.give_up()
                self._outbox.reply(request_id, request.refuse(error_code))
                return
            producer = ProducerIdAndEpoch(producer_id, 0)
            timeout_ms = request.transaction_timeout_ms
            metadata = transaction.initialized(now_ms, producer, timeout_ms, last_epoch)
            self._write(transaction, metadata, request_id, request)

        self._outbox.allocate(transaction, allocated)

    def _resume(
        self, transaction: Transaction, now_ms: int, request_id: int, request: InitProducerId
    ) -> None:
        """Use the producer id with the next epoch; for a retry, with the current epoch."""
        producer, last_epoch = transaction.producer, transaction.metadata.last_producer_epoch
        if request.expected in {NO_PRODUCER, producer}:
            goes_on = request.expected == producer
            last_epoch = producer.epoch if goes_on else NO_EPOCH
            producer = ProducerIdAndEpoch(producer.producer_id, bumped(producer.epoch))
        transaction.begin(TransactionState.EMPTY)
        timeout_ms = request.transaction_timeout_ms
        metadata = transaction.initialized(now_ms, producer, timeout_ms, last_epoch)
        self._write(transaction, metadata, request_id, request)

    def _write(
        self,
        transaction: Transaction,
        metadata: TransactionMetadata,
        request_id: int,
        request: InitProducerId,
    ) -> None:
        producer = ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch)

        def done(_now_ms: int, error_code: ErrorCode) -> None:
            is_written = error_code is ErrorCode.NONE
            result = ProducerResult(error_code=error_code, producer=producer)
            self._outbox.reply(request_id, result if is_written else request.refuse(error_code))

        self._outbox.write(transaction, metadata, done)

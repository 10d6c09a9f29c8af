"""How transactions end: EndTxn, and aborts by the coordinator itself (KIP-98, KIP-890).

The Prepare record is the decision. Clients of transaction.version 2 (`bumps_epoch`) give every
transaction its own epoch: a late request for one transaction cannot end the next (KAFKA-17754).
The epoch of an older client does not distinguish two transactions of one producer.
"""

from typing import Final

from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.core.outbox import TransactionOutbox, WriteDone
from quorumlog.broker.transactions.core.records import TransactionMetadata
from quorumlog.broker.transactions.core.requests import (
    EndTransaction,
    ProducerIdAndEpoch,
    ProducerResult,
)
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.broker.transactions.core.transaction import (
    EPOCH_MAX,
    Transaction,
    bumped,
    bumps_epoch,
    is_exhausted,
    producer_after,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_PRODUCER_ID

_COMPLETE: Final = {
    True: TransactionState.COMPLETE_COMMIT,
    False: TransactionState.COMPLETE_ABORT,
}  # by `commit`


class TransactionEnd:
    """Decides the outcome of a transaction, once."""

    def __init__(self, settings: BrokerSettings, outbox: TransactionOutbox) -> None:
        self._outbox: Final = outbox
        self._settings: Final = settings

    # --- EndTxn ---

    def handle(
        self, transaction: Transaction | None, now_ms: int, request_id: int, request: EndTransaction
    ) -> None:
        """Answer: at once, or when the decision is committed; the markers follow."""
        if transaction is None:
            refusal = request.refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            self._outbox.reply(request_id, refusal)
            return
        bumps = bumps_epoch(request.client_transaction_version)
        judge = self._validate_v2 if bumps else self._validate_v1
        outcome = judge(transaction, request.producer, commit=request.commit)
        if outcome is None:
            self._decide(transaction, now_ms, request_id, request)
        elif outcome is ErrorCode.NONE:
            self._outbox.reply(request_id, self._success(request, transaction.producer))
        else:
            self._outbox.reply(request_id, request.refuse(outcome))

    def _validate_v1(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        """Return None to end the transaction; NONE: it has already ended so; else the error.

        The epoch must be the current epoch, not a newer one (KAFKA-9600).
        """
        error_code = transaction.refusal_of(producer)
        if error_code is not ErrorCode.NONE:
            return error_code
        if transaction.is_busy:  # a second Prepare or Complete is never written (KAFKA-10080)
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if transaction.state is TransactionState.ONGOING:
            return None
        is_done = transaction.state is _COMPLETE[commit]
        return ErrorCode.NONE if is_done else ErrorCode.INVALID_TXN_STATE

    def _validate_v2(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        """Judge a request of transaction.version 2: the current epoch has no completed transaction.

        CONCURRENT_TRANSACTIONS comes before PRODUCER_FENCED: the client has its next epoch before
        all markers are written (KAFKA-18464). An abort without a transaction is accepted: the
        client may be unsure whether a transaction was begun.
        """
        if transaction.is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if self._is_retry(transaction, producer):
            if transaction.state is _COMPLETE[commit]:
                return ErrorCode.NONE
            # The coordinator aborted the transaction before the commit came (KAFKA-20785).
            return ErrorCode.PRODUCER_FENCED if commit else ErrorCode.INVALID_TXN_STATE
        error_code = transaction.refusal_of(producer)
        if error_code is not ErrorCode.NONE:
            return error_code
        is_open = transaction.state is TransactionState.ONGOING
        return None if is_open or not commit else ErrorCode.INVALID_TXN_STATE

    def _is_retry(self, transaction: Transaction, producer: ProducerIdAndEpoch) -> bool:
        """Whether the producer has the epoch of the last completed transaction.

        # DEVIATION: Kafka does not check that this transaction was ended with an epoch bump.
        # docs/decisions/0033-transaction-coordinator.md
        """
        metadata = transaction.metadata
        if transaction.state not in _COMPLETE.values() or not bumps_epoch(
            metadata.client_transaction_version
        ):
            return False
        if producer.producer_id == metadata.producer_id:
            return producer.epoch == metadata.producer_epoch - 1
        is_rotated = producer.producer_id == metadata.previous_producer_id
        return is_rotated and producer.epoch == EPOCH_MAX - 1 and metadata.producer_epoch == 0

    def _decide(
        self, transaction: Transaction, now_ms: int, request_id: int, request: EndTransaction
    ) -> None:
        to = TransactionState.PREPARE_COMMIT if request.commit else TransactionState.PREPARE_ABORT
        transaction.begin(to)

        def done(_now_ms: int, error_code: ErrorCode) -> None:
            if error_code is ErrorCode.NONE:
                result = self._success(request, producer_after(transaction.metadata))
            else:
                result = request.refuse(error_code)
            self._outbox.reply(request_id, result)

        self._prepare(transaction, now_ms, to, request.client_transaction_version, done)

    def _success(self, request: EndTransaction, producer: ProducerIdAndEpoch) -> ProducerResult:
        if not bumps_epoch(request.client_transaction_version):
            return request.refuse(ErrorCode.NONE)
        return ProducerResult(error_code=ErrorCode.NONE, producer=producer)

    # --- By the coordinator ---

    def deadline_ms(self, open_transaction: TransactionMetadata) -> int:
        """Return when an open transaction is to be aborted, in ms since 1970.

        It is the first multiple of the abort interval at or after the timeout. Kafka scans at this
        interval, counted from the start of a broker.
        """
        over_ms = open_transaction.start_ms + open_transaction.transaction_timeout_ms
        interval_ms = self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        return -(-over_ms // interval_ms) * interval_ms

    def fence(self, transaction: Transaction, now_ms: int, done: WriteDone) -> None:
        """Abort the open transaction, with an epoch that its producer does not have.

        The reason: another producer begins, or the transaction exceeds its timeout.
        """
        transaction.begin(TransactionState.PREPARE_EPOCH_FENCE)
        to, version = TransactionState.PREPARE_ABORT, self._outbox.transaction_version
        self._prepare(transaction, now_ms, to, version, done, is_fence=True)

    def _prepare(
        self,
        transaction: Transaction,
        now_ms: int,
        to: TransactionState,
        version: int,
        done: WriteDone,
        *,
        is_fence: bool = False,
    ) -> None:
        """Write the decision; if the epochs are exhausted, get the next producer id first."""

        def write(now_ms: int, next_producer_id: int, error_code: ErrorCode) -> None:
            if error_code is not ErrorCode.NONE:
                transaction.give_up()
                done(now_ms, error_code)
                return
            if is_fence:
                transaction.begin(to)
            epoch, bumps = transaction.producer.epoch, bumps_epoch(version)
            if bumps:  # once, also for a fence (KAFKA-19367)
                last_epoch = epoch
            else:
                last_epoch = NO_EPOCH if is_fence else transaction.metadata.last_producer_epoch
            metadata = transaction.prepared(
                now_ms,
                to,
                bumped(epoch) if bumps or is_fence else epoch,
                last_epoch,
                next_producer_id=next_producer_id,
                client_transaction_version=version if bumps else 0,
            )
            self._outbox.write(transaction, metadata, done)

        if bumps_epoch(version) and is_exhausted(transaction.producer.epoch):  # KAFKA-20090
            self._outbox.allocate(transaction, write)
        else:
            write(now_ms, NO_PRODUCER_ID, ErrorCode.NONE)

"""AddPartitionsToTxn and AddOffsetsToTxn: which partitions a transaction will write its markers to.

A partition takes the records of a transaction only when the coordinator knows that it belongs to
it, so that no transaction is left open there (KIP-890). Clients of transaction.version 0 and 1 say
so before they produce, and the leader of the partition verifies; for clients of version 2 the
leader itself adds it. Between the answer here and the append there, the transaction may end: only
the leader can see that, by the marker that it has written meanwhile (KAFKA-14884, KAFKA-14920).
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.broker.transactions.core.outbox import TransactionOutbox
from quorumlog.broker.transactions.core.requests import (
    AddOffsets,
    AddPartitions,
    AddPartitionsResult,
    ProducerIdAndEpoch,
)
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


class Adding:
    """Adds partitions to the transaction of a producer that is not fenced."""

    def __init__(self, outbox: TransactionOutbox) -> None:
        self._outbox: Final = outbox

    def handle(
        self,
        transaction: Transaction | None,
        now_ms: int,
        request_id: int,
        request: AddPartitions | AddOffsets,
    ) -> None:
        """Answer, at once or when the partitions are committed."""
        if transaction is None:
            refusal = request.refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            self._outbox.reply(request_id, refusal)
        elif isinstance(request, AddOffsets):
            partitions = [request.offsets_partition]
            self._add(transaction, now_ms, request_id, request, partitions)
        elif request.verify_only:
            self._verify(transaction, request_id, request)
        else:
            self._add(transaction, now_ms, request_id, request, request.partitions)

    def _verify(self, transaction: Transaction, request_id: int, request: AddPartitions) -> None:
        """Say which partitions belong to the open transaction, as far as it is committed."""
        error_code = transaction.refusal_of(request.producer)
        if error_code is ErrorCode.NONE and transaction.state in PREPARED:
            error_code = ErrorCode.CONCURRENT_TRANSACTIONS
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, request.refuse(error_code))
            return
        absent = request.worded(ErrorCode.TRANSACTION_ABORTABLE)
        outcomes = {
            where: ErrorCode.NONE if where in transaction.metadata.partitions else absent
            for where in sorted(request.partitions)
        }
        self._outbox.reply(request_id, AddPartitionsResult(partitions=outcomes))

    def _add(
        self,
        transaction: Transaction,
        now_ms: int,
        request_id: int,
        request: AddPartitions | AddOffsets,
        partitions: Iterable[TopicPartition],
    ) -> None:
        error_code = self._refusal(transaction, request.producer)
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, request.refuse(error_code))
            return
        is_open = transaction.state is TransactionState.ONGOING
        if is_open and {*partitions} <= {*transaction.metadata.partitions}:
            self._outbox.reply(request_id, request.refuse(ErrorCode.NONE))
            return
        version = request.client_transaction_version if isinstance(request, AddPartitions) else 0
        transaction.begin(TransactionState.ONGOING)
        self._outbox.write(
            transaction,
            transaction.with_partitions(now_ms, partitions, version),
            lambda _now_ms, error_code: self._outbox.reply(request_id, request.refuse(error_code)),
        )

    def _refusal(self, transaction: Transaction, producer: ProducerIdAndEpoch) -> ErrorCode:
        """Say why nothing may be added now; NONE: it may.

        "Wait" comes first: a client that was told its next producer id while the markers of its
        last transaction are being written must not be fenced for using it (KAFKA-18660).
        """
        if transaction.is_busy:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return transaction.refusal_of(producer)

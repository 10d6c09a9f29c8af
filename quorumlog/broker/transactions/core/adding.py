"""AddPartitionsToTxn and AddOffsetsToTxn: which partitions a transaction will write its markers to.

A partition takes the records of a transaction only when the coordinator knows that it belongs to
it, so that no transaction is left open there (KIP-890). Clients of transaction.version 0 and 1 say
so before they produce, and the leader of the partition verifies; for clients of version 2 the
leader itself adds it. Between the answer here and the append there, the transaction may end: only
the leader can see that, by the marker that it has written meanwhile (KAFKA-14884, KAFKA-14920).
"""

from collections.abc import Sequence
from typing import Final

from quorumlog.broker.transactions.core.held import Addition, HeldAdditions
from quorumlog.broker.transactions.core.outbox import Change, TransactionOutbox
from quorumlog.broker.transactions.core.requests import (
    AddOffsets,
    AddPartitions,
    AddPartitionsResult,
)
from quorumlog.broker.transactions.core.settings import TransactionSettings
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction, bumps_epoch
from quorumlog.wire.codec.error_codes import ErrorCode


class Adding:
    """Adds partitions to the transaction of a producer that is not fenced."""

    def __init__(self, settings: TransactionSettings, outbox: TransactionOutbox) -> None:
        self._outbox: Final = outbox
        self._held: Final = HeldAdditions(settings)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `answer_late`; None: nothing waits."""
        return self._held.next_deadline_ms

    def handle(
        self,
        transaction: Transaction | None,
        now_ms: int,
        request_id: int,
        request: AddPartitions | AddOffsets,
    ) -> None:
        """Answer: at once, when the partitions are committed, or when the id was busy too long.

        "Wait" comes first: a client that was told its next producer id while the markers of its
        last transaction are being written must not be fenced for using it (KAFKA-18660).
        """
        addition = Addition(request_id, request)
        if transaction is None:
            self._refuse([addition], ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif isinstance(request, AddPartitions) and request.verify_only:
            self._verify(transaction, request_id, request)
        elif not transaction.is_busy:
            self._add(transaction, now_ms, [addition])
        elif not (_may_wait(request) and self._held.hold(now_ms, addition)):
            self._refuse([addition], ErrorCode.CONCURRENT_TRANSACTIONS)

    def go_on(self, transaction: Transaction | None, now_ms: int, transactional_id: str) -> None:
        """Add what has waited for the id, if it is not busy any more. None: it is gone."""
        if transaction is None:
            held = self._held.take(transactional_id)
            self._refuse(held, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif not transaction.is_busy:
            self._add(transaction, now_ms, self._held.take(transactional_id))

    def answer_late(self, now_ms: int, limit: int) -> None:
        """Let those come again that wait for too long, of `limit` ids at most."""
        self._refuse(self._held.take_late(now_ms, limit), ErrorCode.CONCURRENT_TRANSACTIONS)

    def refuse_all(self, error_code: ErrorCode) -> None:
        """Answer all that waits."""
        self._refuse(self._held.take_all(), error_code)

    def check_progress(self, transactional_id: str) -> None:
        """Raise InvariantViolation if an addition waits for ever, or a deadline is for none."""
        self._held.check_progress(transactional_id)

    def _refuse(self, additions: Sequence[Addition], error_code: ErrorCode) -> None:
        for one in additions:
            self._outbox.reply(one.request_id, one.request.refuse(error_code))

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

    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        """Add what these ask for with one record."""
        is_open = transaction.state is TransactionState.ONGOING
        written: list[Addition] = []
        for one in additions:
            error_code = transaction.refusal_of(one.request.producer)
            is_known = is_open and one.request.partitions <= {*transaction.metadata.partitions}
            if error_code is ErrorCode.NONE and not is_known:
                written.append(one)
            else:
                self._refuse([one], error_code)
        if written:
            transaction.begin(TransactionState.ONGOING)
            metadata, done = self._added(transaction, now_ms, written)
            self._outbox.write(transaction, metadata, done)

    def begins_behind(self, completed: Transaction, now_ms: int) -> Change | None:
        """Return how the next transaction begins, if its additions wait already.

        `completed`: what the id will be. One batch says both, so that the additions need not wait
        for the first half of it to be committed. None if not all of them are of its producer.
        """
        held = self._held.held(completed.transactional_id)
        if not held or any(one.request.producer != completed.producer for one in held):
            return None
        return self._added(completed, now_ms, self._held.take(completed.transactional_id))

    def _added(
        self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]
    ) -> Change:
        metadata = transaction.with_partitions(
            now_ms,
            {where for one in additions for where in one.request.partitions},
            additions[-1].request.client_transaction_version,
        )
        return metadata, lambda _now_ms, error_code: self._refuse(additions, error_code)


def _may_wait(request: AddPartitions | AddOffsets) -> bool:
    """Whether the epoch of an addition tells its transaction apart from the one that ends.

    An older client has one epoch for all its transactions. A late addition to its last transaction
    would begin another one, of which the client has no record.
    """
    return bumps_epoch(request.client_transaction_version)

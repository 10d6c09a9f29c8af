"""AddPartitionsToTxn and AddOffsetsToTxn: the partitions that get a transaction's markers.

A partition accepts the records of a transaction only when the coordinator has added it, so that no
transaction stays open there (KIP-890). Clients of transaction.version 0 and 1 add it before they
produce, and the leader of the partition verifies; for clients of version 2 the leader itself adds
it. Between the coordinator's answer and the leader's append, the transaction may end: only the
leader can detect that, by the marker that it has written meanwhile (KAFKA-14884, KAFKA-14920).
"""

from collections.abc import Sequence
from typing import Final

from quorumlog.broker.transactions.core.outbox import Change, TransactionOutbox
from quorumlog.broker.transactions.core.requests import (
    AddOffsets,
    AddPartitions,
    AddPartitionsResult,
)
from quorumlog.broker.transactions.core.settings import TransactionSettings
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction, bumps_epoch
from quorumlog.broker.transactions.core.waiting_additions import Addition, WaitingAdditions
from quorumlog.wire.codec.error_codes import ErrorCode


class PartitionAdditions:
    """Adds partitions to the transaction of the current producer."""

    def __init__(self, settings: TransactionSettings, outbox: TransactionOutbox) -> None:
        self._outbox: Final = outbox
        self._held: Final = WaitingAdditions(settings)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `answer_late`; None: no addition waits."""
        return self._held.next_deadline_ms

    def handle(
        self,
        transaction: Transaction | None,
        now_ms: int,
        request_id: int,
        request: AddPartitions | AddOffsets,
    ) -> None:
        """Answer: at once, when the partitions are committed, or when the id was busy too long.

        CONCURRENT_TRANSACTIONS comes before PRODUCER_FENCED: a client that has its next producer id
        while the markers of its last transaction are sent must not be fenced (KAFKA-18660).
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

    def resume(self, transaction: Transaction | None, now_ms: int, transactional_id: str) -> None:
        """Handle the additions held for an id, unless it is busy; refuse them if it is gone."""
        if transaction is None:
            held = self._held.take(transactional_id)
            self._refuse(held, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif not transaction.is_busy:
            self._add(transaction, now_ms, self._held.take(transactional_id))

    def answer_late(self, now_ms: int, limit: int) -> None:
        """Refuse additions held for too long, of `limit` ids at most; their clients retry."""
        self._refuse(self._held.take_late(now_ms, limit), ErrorCode.CONCURRENT_TRANSACTIONS)

    def refuse_all(self, error_code: ErrorCode) -> None:
        """Refuse all held additions."""
        self._refuse(self._held.take_all(), error_code)

    def check_progress(self, transactional_id: str) -> None:
        """Raise InvariantViolation if additions lack a deadline, or a deadline lacks additions."""
        self._held.check_progress(transactional_id)

    def _refuse(self, additions: Sequence[Addition], error_code: ErrorCode) -> None:
        for one in additions:
            self._outbox.reply(one.request_id, one.request.refuse(error_code))

    def _verify(self, transaction: Transaction, request_id: int, request: AddPartitions) -> None:
        """Answer which partitions belong to the open transaction, by its committed metadata."""
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
        """Add the partitions of all these requests with one record."""
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
        """Return the change that begins the next transaction, if its additions already wait.

        `completed`: the id after the change under way. One batch writes both changes, so that the
        additions need not wait for a commit. None if any addition is of another producer.
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
    """Whether the epoch of an addition distinguishes its transaction from the ending one.

    An older client has one epoch for all its transactions. A late addition to its last transaction
    would begin another, unknown to the client.
    """
    return bumps_epoch(request.client_transaction_version)

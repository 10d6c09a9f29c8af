"""AddPartitionsToTxn and AddOffsetsToTxn: the partitions that get a transaction's markers.

A partition accepts the records of a transaction only when the coordinator has added it, so that no
transaction stays open there (KIP-890). Clients of transaction.version 0 and 1 add it before they
produce, and the leader of the partition verifies; for clients of version 2 the leader itself adds
it. Between the coordinator's answer and the leader's append, the transaction may end: only the
leader can detect that, by the marker that it has written meanwhile (KAFKA-14884, KAFKA-14920).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from quorumlog.broker.coordination.core.deadlines import Deadlines
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.core.outbox import Change, TransactionOutbox
from quorumlog.broker.transactions.core.requests import (
    AddOffsets,
    AddPartitions,
    AddPartitionsResult,
)
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction, bumps_epoch
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode

HELD_MAX: Final = 100  # of one transactional id


@dataclass(frozen=True, slots=True)
class Addition:
    """A request to add partitions; it gets one answer."""

    request_id: int
    request: AddPartitions | AddOffsets


@dataclass(slots=True)
class _Window:
    """The additions that wait while an id is busy, and their deadline."""

    until_ms: int
    held: list[Addition] = field(default_factory=list)


class WaitingAdditions:
    """The held additions of all ids.

    A busy id has one window, which opens with the first addition. An addition after the end
    of the window is refused, and its sender retries: a long change delays a connection only once.

    Only additions for clients of transaction.version 2 wait: their epochs distinguish transactions.
    Such a client begins a transaction while the markers of its last one are being written. A
    refusal and a retry would cost a multiple of the time that the pending change takes.

    # DEVIATION: Kafka answers each CONCURRENT_TRANSACTIONS at once.
    # docs/decisions/0035-transaction-additions.md
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._hold_max_ms: Final = settings.add_partitions_to_txn_retry_backoff_ms
        self._windows: Final[dict[str, _Window]] = {}
        self._deadlines: Final = Deadlines[str]()

    @property
    def next_deadline_ms(self) -> int | None:
        """The end of the next window with held additions, else None."""
        return self._deadlines.first_ms

    def hold(self, now_ms: int, addition: Addition) -> bool:
        """Hold an addition to a busy id; False: refuse it, its sender retries."""
        transactional_id = addition.request.transactional_id
        window = self._windows.get(transactional_id)
        if window is None:
            window = self._windows[transactional_id] = _Window(now_ms + self._hold_max_ms)
            self._deadlines.set(transactional_id, window.until_ms)
        if now_ms >= window.until_ms or len(window.held) >= HELD_MAX:
            return False
        window.held.append(addition)
        return True

    def held(self, transactional_id: str) -> list[Addition]:
        """Return the additions held for an id, in order."""
        window = self._windows.get(transactional_id)
        return [] if window is None else window.held

    def take(self, transactional_id: str) -> list[Addition]:
        """Remove and return the additions held for an id that is no longer busy."""
        window = self._windows.pop(transactional_id, None)
        if window is None:
            return []
        self._deadlines.set(transactional_id, None)
        return window.held

    def take_late(self, now_ms: int, limit: int) -> list[Addition]:
        """Return additions held for too long; closes the windows of `limit` ids at most."""
        late: list[Addition] = []
        for transactional_id in self._deadlines.due(now_ms, limit):
            self._deadlines.set(transactional_id, None)
            window = self._windows[transactional_id]  # stays, closed: no addition waits again
            late += window.held
            window.held = []
        return late

    def check_progress(self, transactional_id: str) -> None:
        """Raise InvariantViolation if additions lack a deadline, or a deadline lacks additions."""
        window, has_deadline = (
            self._windows.get(transactional_id),
            transactional_id in self._deadlines,
        )
        require(
            not (self.held(transactional_id) and not has_deadline), "an addition has a deadline"
        )
        require(window is not None or not has_deadline, "a deadline is for additions that wait")

    def take_all(self) -> list[Addition]:
        """Remove and return the held additions of all ids."""
        return [one for name in sorted(self._windows) for one in self.take(name)]


class PartitionAdditions:
    """Adds partitions to the transaction of the current producer."""

    def __init__(self, settings: BrokerSettings, outbox: TransactionOutbox) -> None:
        self._outbox: Final = outbox
        self.waiting: Final = WaitingAdditions(settings)

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
        elif not (_may_wait(request) and self.waiting.hold(now_ms, addition)):
            self._refuse([addition], ErrorCode.CONCURRENT_TRANSACTIONS)

    def resume(self, transaction: Transaction | None, now_ms: int, transactional_id: str) -> None:
        """Handle the additions held for an id, unless it is busy; refuse them if it is gone."""
        if transaction is None:
            held = self.waiting.take(transactional_id)
            self._refuse(held, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif not transaction.is_busy:
            self._add(transaction, now_ms, self.waiting.take(transactional_id))

    def answer_late(self, now_ms: int, limit: int) -> None:
        """Refuse additions held for too long, of `limit` ids at most; their clients retry."""
        self._refuse(self.waiting.take_late(now_ms, limit), ErrorCode.CONCURRENT_TRANSACTIONS)

    def refuse_all(self, error_code: ErrorCode) -> None:
        """Refuse all held additions."""
        self._refuse(self.waiting.take_all(), error_code)

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
        held = self.waiting.held(completed.transactional_id)
        if not held or any(one.request.producer != completed.producer for one in held):
            return None
        return self._added(completed, now_ms, self.waiting.take(completed.transactional_id))

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

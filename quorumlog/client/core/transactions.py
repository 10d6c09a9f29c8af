"""Decides a transactional producer's requests to its coordinators, and its transactions' states.

A transaction has one of two protocols. Before KIP-890 the producer adds each partition at the
coordinator (AddPartitionsToTxn) before the partition's first batch, and each group
(AddOffsetsToTxn). With transaction.version 2 brokers add both, and every EndTxn raises the
producer's epoch.

Before KIP-890 an epoch outlives its transactions. A request whose response was lost may then be
executed in the next transaction, and a failed batch leaves a gap in its partition's sequence
numbers. So the producer requests the next epoch (InitProducerId with its own identity, KIP-360)
before it is ready again (docs/decisions/0042-producer-outcomes.md).

EndTxn is repeated until its outcome is certain; until then a call that fails has an indefinite
error (docs/decisions/0042-producer-outcomes.md).
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from quorumlog.client.core.accumulator import Accumulator
from quorumlog.client.core.batch import Batch, ProducerIdentity
from quorumlog.client.core.metadata_cache import Leader, Leaders
from quorumlog.client.core.transaction import Outcome, PendingOffsets, Transaction
from quorumlog.client.core.transaction_requests import (
    Abilities,
    AddOffsets,
    AddPartitions,
    Answer,
    CommitOffsets,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    Reaction,
    TransactionRequest,
    reaction_to_batch,
)
from quorumlog.client.errors import KafkaError, TransactionError
from quorumlog.client.records import GroupMetadata, OffsetAndMetadata
from quorumlog.client.settings import ProducerSettings
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


class TransactionState(Enum):
    """UNINITIALIZED: before `init_transactions`. FATAL_ERROR: no request is sent any more."""

    UNINITIALIZED = "Uninitialized"
    INITIALIZING = "Initializing"
    READY = "Ready"
    IN_TRANSACTION = "InTransaction"
    COMMITTING = "Committing"
    ABORTING = "Aborting"
    ABORTABLE_ERROR = "AbortableError"
    FATAL_ERROR = "FatalError"


_S: Final = TransactionState
TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    _S.UNINITIALIZED: frozenset({_S.INITIALIZING, _S.FATAL_ERROR}),
    _S.INITIALIZING: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.COMMITTING: frozenset({_S.INITIALIZING, _S.READY, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.ABORTING: frozenset({_S.INITIALIZING, _S.READY, _S.FATAL_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
    _S.FATAL_ERROR: frozenset(),
}


INITIALIZE: Final = "init_transactions"
COMMIT: Final = "commit_transaction"
ABORT: Final = "abort_transaction"
SEND_OFFSETS: Final = "send_offsets_to_transaction"

_OPEN: Final = frozenset({_S.IN_TRANSACTION, _S.COMMITTING})
_WHY: Final = {
    Reaction.FENCED: "another producer has this transactional id now, or the transaction timed out",
    Reaction.UNKNOWN_ID: "the coordinator no longer has this producer's id: it expired after"
    " transactional.id.expiration.ms without a transaction, or another producer has this"
    " transactional id now; close this producer and make a new one",
}


class Transactions:
    """The transactions of one producer.

    Invariants (tests hold this against a model of coordinators):
      1. `may_send` allows a partition only if the coordinator has it, or brokers add it.
      2. EndTxn is requested only while the caller reports that no batch waits or is in flight.
      3. After a fatal error no request is made.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        """Start without an identity; `settings` have a transactional id."""
        self.transactional_id: Final = settings.transactional_id or ""
        self.state = TransactionState.UNINITIALIZED
        self.identity: ProducerIdentity | None = None
        self.error: TransactionError | None = None  # the cause of ABORTABLE_ERROR or FATAL_ERROR
        self.number = 0  # of the current transaction, from 1
        self.abilities = Abilities()  # of the coordinator, when last found
        self._current = Transaction(is_implicit=False)
        self._outcome: Outcome | None = None  # until `claim` returns it

    def _become(self, state: TransactionState) -> None:
        """Change state: the one writer. Raises InvariantViolation for an illegal change."""
        require(state in TRANSITIONS[self.state], f"a producer may go {self.state} -> {state}")
        self.state = state

    # --- calls: RuntimeError in a wrong state, KafkaError after an error ---

    def initialize(self) -> Outcome:
        """Request an identity, which fences every earlier producer of this transactional id."""
        if self._outcome is not None and self._outcome.operation == INITIALIZE:
            return self._outcome
        self._refuse_after_error()
        if self.state is not TransactionState.UNINITIALIZED:
            raise RuntimeError("init_transactions was called before: once is enough")
        self._become(TransactionState.INITIALIZING)
        self._outcome = Outcome(INITIALIZE)
        return self._outcome

    def begin(self) -> None:
        """Begin the next transaction."""
        self._refuse_after_error()
        if self.state is TransactionState.UNINITIALIZED:
            raise RuntimeError("call init_transactions first")
        outcome = self._outcome
        if outcome is not None and (outcome.operation == COMMIT or not outcome.is_done):
            raise RuntimeError(f"{outcome.operation} has not returned: call it again first")
        if self.state is not TransactionState.READY:
            raise RuntimeError("a transaction is open: commit or abort it first")
        self._become(TransactionState.IN_TRANSACTION)
        self._outcome = None
        self.number += 1
        self._current = Transaction(is_implicit=self.abilities.is_implicit)

    def ticket(self) -> int:
        """Return the number of the open transaction, for a record that waits to be admitted."""
        self._refuse_after_error()
        if self.state is not TransactionState.IN_TRANSACTION:
            raise RuntimeError("no transaction is open: call begin_transaction first")
        return self.number

    def admit(self, ticket: int, topic_partition: TopicPartition) -> None:
        """Add a record's partition to the transaction with the number `ticket`."""
        if self.ticket() != ticket:
            raise RuntimeError("the transaction has ended while the record waited for its turn")
        self._current.admit(topic_partition)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> Outcome:
        """Commit a group's offsets with the open transaction (KIP-447)."""
        self.ticket()
        outcome = Outcome(SEND_OFFSETS)
        if offsets:
            self._current.offsets.append(PendingOffsets(group, dict(offsets), outcome))
        else:
            outcome.resolve(None)
        return outcome

    def commit(self) -> Outcome:
        """Commit the open transaction; a repeated call returns the same outcome."""
        if self._outcome is not None and self._outcome.operation == COMMIT:
            return self._outcome
        if self.error is not None:
            raise self.error.again()
        self.ticket()
        return self._begin_end(TransactionState.COMMITTING, COMMIT)

    def abort(self) -> Outcome:
        """Abort the open transaction; a repeated call returns the same outcome."""
        outcome = self._outcome
        if outcome is not None and outcome.operation == ABORT:
            return outcome
        if self.state is TransactionState.FATAL_ERROR:
            self._refuse_after_error()
        if self.state not in {_S.IN_TRANSACTION, _S.ABORTABLE_ERROR}:
            if outcome is not None and outcome.operation == COMMIT:
                raise RuntimeError("commit_transaction has not returned: call it again")
            raise RuntimeError("there is no transaction to abort")
        self.error = None
        aborted = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "aborted", definite=True)
        self._current.drop_waiting(aborted)
        return self._begin_end(TransactionState.ABORTING, ABORT)

    def _begin_end(self, state: TransactionState, operation: str) -> Outcome:
        self._become(state)
        self._outcome = Outcome(operation)
        return self._outcome

    def claim(self, outcome: Outcome) -> KafkaError | None:
        """Return the error of a finished outcome, and release the outcome."""
        require(outcome.is_done, "only ended transactions are reported")
        if self._outcome is outcome:
            self._outcome = None
        return outcome.error

    @property
    def pending(self) -> Outcome | None:
        """The outcome of the last init, commit or abort, if it was not claimed yet."""
        return self._outcome

    def _refuse_after_error(self) -> None:
        if self.error is not None:
            raise self.error.again(definite=True)  # this call has had no effect

    # --- batches ---

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Return whether a batch of this partition may leave now."""
        current = self._current
        is_known = current.is_implicit or topic_partition in current.added
        return is_known and self.state in _OPEN

    @property
    def is_implicit(self) -> bool:
        """True if the brokers add partitions to the current transaction (KIP-890)."""
        return self._current.is_implicit

    def refusal(self) -> KafkaError | None:
        """Return the error for all batches that were not sent; None if they may leave."""
        if self.state is TransactionState.ABORTING:
            code = ErrorCode.OPERATION_NOT_ATTEMPTED
            return KafkaError(code, "the transaction was aborted", definite=True)
        return self.error

    def handle_failed_batch(self, error: KafkaError, *, was_sent: bool) -> KafkaError:
        """Handle a failed batch; return the error for its records."""
        self._current.has_gaps = self._current.has_gaps or was_sent
        if self.state in _OPEN:
            self._react(reaction_to_batch(error.code), error, "a batch")
        if self.error is None:
            return error  # the user has aborted
        is_fatal = self.state is TransactionState.FATAL_ERROR
        return TransactionError(error.code, error.message, definite=error.definite, fatal=is_fatal)

    # --- the next request ---

    def wanted(self, *, is_quiet: bool) -> TransactionRequest | None:
        """Return the request to make now. `is_quiet`: no batch waits or is in flight."""
        if self.state is TransactionState.INITIALIZING:
            return InitProducerId(identity=self.identity)
        if self.state in _OPEN:
            request = self._current.wanted(self._identified())
            if request is not None:
                return request
        if is_quiet and self.state in {TransactionState.COMMITTING, TransactionState.ABORTING}:
            return self._wanted_at_the_end(committed=self.state is TransactionState.COMMITTING)
        return None

    def _wanted_at_the_end(self, *, committed: bool) -> TransactionRequest | None:
        current = self._current
        if current.may_be_open:
            return EndTransaction(
                identity=self._identified(), committed=committed, is_implicit=current.is_implicit
            )
        self._end()
        return self.wanted(is_quiet=True)

    def _identified(self) -> ProducerIdentity:
        require(self.identity is not None, "a transaction has an identity")
        return self.identity or ProducerIdentity(-1, -1)

    # --- responses and lost requests ---

    def note_doubt(self, request: TransactionRequest, *, is_late: bool) -> None:
        """Record that an attempt may have been executed. `is_late`: or may be at any later time."""
        match request:
            case InitProducerId() | EndTransaction():
                if self._outcome is not None:
                    self._outcome.indefinite = True
            case AddPartitions() | AddOffsets() | CommitOffsets():
                self._current.may_be_open = True
            case FindCoordinator():
                return
        if is_late and not isinstance(request, InitProducerId):
            self._current.lost_requests = True

    def take(self, request: TransactionRequest, answer: Answer, *, is_refused: bool) -> None:
        """Apply a response: all of the request was done, or a part of it."""
        current = self._current
        match request:
            case AddPartitions():
                current.handle_added(answer.partitions)
            case CommitOffsets():
                current.handle_committed(request, answer.partitions)
            case _ if is_refused:
                pass
            case AddOffsets():
                current.groups.add(request.group_id)
                current.may_be_open = current.is_open = True
            case InitProducerId():
                require(answer.identity is not None, "InitProducerId gives an identity")
                self.identity = answer.identity
                self._become(TransactionState.READY)
                self._resolve(None)
            case EndTransaction():
                current.has_ended = True
                if answer.identity is not None:  # a new epoch has no lost requests, no gaps
                    self.identity = answer.identity
                    current.lost_requests = current.has_gaps = False
                self._end()
            case FindCoordinator():
                pass

    def react(self, request: TransactionRequest, reaction: Reaction, error: KafkaError) -> None:
        """Handle an error that ends the transaction or the producer."""
        current = self._current
        is_abort = isinstance(request, EndTransaction) and self.state is TransactionState.ABORTING
        may_be_nothing = is_abort and not current.is_implicit and not current.is_open
        if may_be_nothing and error.code == ErrorCode.INVALID_TXN_STATE:
            current.lost_requests = True  # the requests that open it failed, or may arrive later
            self._end()
            return
        self._react(reaction, error, type(request).__name__)

    def _react(self, reaction: Reaction, error: KafkaError, what: str) -> None:
        message = f"{what}: {error.message}".removesuffix(": ")
        if reaction is Reaction.ABORT:
            if self.state in _OPEN:
                self._give_up(TransactionState.ABORTABLE_ERROR, error.code, message)
        else:
            code = ErrorCode.PRODUCER_FENCED if reaction is Reaction.FENCED else error.code
            why = _WHY.get(reaction)
            self._fail_producer(code, f"{message}: {why}" if why else message)

    def _end(self) -> None:
        """Become ready for the next transaction; after lost requests or gaps in another epoch."""
        current = self._current
        # DEVIATION: Kafka's clients keep their epoch when a response was lost.
        # docs/decisions/0042-producer-outcomes.md
        needs_epoch = current.lost_requests or current.has_gaps
        if not needs_epoch or (not current.has_gaps and not self.abilities.recovers):
            self._become(TransactionState.READY)
            self._resolve(None)
        elif self.abilities.recovers:
            self._become(TransactionState.INITIALIZING)
        else:
            message = "batches have failed, and this cluster gives no new epoch (KIP-360)"
            self._fail_producer(ErrorCode.UNSUPPORTED_VERSION, message)

    def _fail_producer(self, code: ErrorCode, message: str) -> None:
        if self.state is not TransactionState.FATAL_ERROR:
            self._give_up(TransactionState.FATAL_ERROR, code, message)

    def _give_up(self, state: TransactionState, code: ErrorCode, message: str) -> None:
        definite = self._outcome is None or not self._outcome.indefinite
        is_fatal = state is TransactionState.FATAL_ERROR
        self.error = error = TransactionError(code, message, definite=definite, fatal=is_fatal)
        self._become(state)
        self._current.drop_waiting(error.again(definite=True))  # they are never committed
        # An accepted EndTxn counts as success, even if the request for the next epoch fails.
        self._resolve(None if self._current.has_ended else error)

    def _resolve(self, error: KafkaError | None) -> None:
        if self._outcome is not None:
            self._outcome.resolve(error)

    def close(self, error: KafkaError) -> None:
        """Fail the producer: no request follows, and every waiting call gets `error`."""
        self._fail_producer(error.code, error.message)


class TransactionBatches:
    """Connects a producer's transactions with its accumulator.

    Batches leave while their transaction is open and, before KIP-890, has their partition added.
    When the transaction fails or is aborted, waiting batches fail at once, also before a retry. The
    responses to sent batches are awaited, since EndTxn must not overtake these batches.
    It is the `Leaders` of a drain: a partition that may not be sent to has no leader.
    """

    def __init__(
        self, transactions: Transactions, accumulator: Accumulator, leaders: Leaders
    ) -> None:
        self._transactions: Final = transactions
        self._accumulator: Final = accumulator
        self._leaders: Final = leaders

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader if a batch may be sent to it now."""
        if not self._transactions.may_send(topic_partition):
            return None
        return self._leaders.leader(topic_partition)

    def has_room(self, broker_id: int) -> bool:
        """Return whether one more request may be sent to this broker now."""
        return self._leaders.has_room(broker_id)

    def sweep(self) -> list[Batch]:
        """Set the accumulator's identity; fail batches that may not be sent. Before each drain."""
        self._accumulator.identity = self._transactions.identity
        error = self._transactions.refusal()
        return [] if error is None else self._accumulator.fail_all(error, but_sent=True)

    def handle_done(self, batches: Iterable[Batch]) -> None:
        """Handle finished batches: a failed batch ends the transaction."""
        for batch in batches:
            if batch.error is not None:
                batch.error = self._transactions.handle_failed_batch(
                    batch.error, was_sent=batch.attempts > 0
                )

    @property
    def is_empty(self) -> bool:
        """True if no batch waits or is in flight."""
        return not self._accumulator.waiting_partitions()

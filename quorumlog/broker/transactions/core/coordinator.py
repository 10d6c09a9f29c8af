"""The transactional ids of one partition of `__transaction_state`, while this broker leads it.

A rule decides from committed metadata, writes a record, and answers once the record is committed;
only then does the state change. So a failed write needs no undo, no client receives an epoch or
outcome that could be lost, and no marker is sent before the decision is safe. Sources: KIP-98,
KIP-360, KIP-588, KIP-664, KIP-890, KIP-1228.
"""

from typing import Final, assert_never

from quorumlog.broker.coordination.core.deadlines import Deadlines
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.core import events
from quorumlog.broker.transactions.core.effects import Effect
from quorumlog.broker.transactions.core.events import Event
from quorumlog.broker.transactions.core.outbox import TransactionOutbox
from quorumlog.broker.transactions.core.records import TransactionRecord, decode, encode
from quorumlog.broker.transactions.core.requests import (
    NOT_WRITTEN,
    AddOffsets,
    AddPartitions,
    EndTransaction,
    InitProducerId,
    Request,
    TransactionDescription,
    TransactionFilter,
)
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.invariants import InvariantViolation, require
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.list_transactions import TransactionState as ListedTransaction

NAME_BYTES_MAX: Final = 32_767  # the longest string in a record key (int16 length)
DUE_AT_ONCE: Final = 100  # ids that one tick handles; if more are due, the next follows at once


class TransactionCoordinator:
    """The coordinator. Call `replay_encoded` for each committed record, `loaded`, then `step`.

    The invariants of each `Transaction` are checked after every step, and one of progress:
      5. A change is pending only while its record is being written, or while it waits for a
         producer id. So a busy id always has an event to come, or a deadline.
      6. An id without a change under way and without all its markers under way has a deadline.
         `check_progress` checks all ids, in tests and simulations.
    Only tests check two more (`tests/property/test_transactions.py`): the committed state equals
    the replayed log, and every decided transaction has markers under way, or a deadline.
    """

    def __init__(
        self, settings: BrokerSettings, transaction_version: int, rules: TransactionRules = SOUND
    ) -> None:
        self.not_written: Final = NOT_WRITTEN
        self.transactions: Final[dict[str, Transaction]] = {}
        self._outbox: Final = TransactionOutbox(transaction_version)
        self._ending: Final = rules.ending(settings, self._outbox)
        self._adding: Final = rules.adding(settings, self._outbox)
        self._markers: Final = rules.markers(self._outbox, self._adding)
        self._expiry: Final = rules.expiry(settings, self._outbox)
        self._initialization: Final = rules.initialization(settings, self._outbox, self._ending)
        self._deadlines: Final = Deadlines[str]()
        self._prepared: Final[set[str]] = set()  # ids whose transaction waits for markers
        self._is_superseded = False  # a partition leader has seen a newer coordinator

    # --- Load ---

    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        """Apply a committed record. Raises ValueError for a malformed record."""
        self.replay(decode(key, value))

    def replay(self, record: TransactionRecord) -> None:
        """Apply a committed record, written by an earlier coordinator or by this one."""
        transactional_id = record.transactional_id
        if record.metadata is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = Transaction(transactional_id, record.metadata)
        self._note(transactional_id)

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        """Return key and value of a record."""
        return encode(record)

    def loaded(self, _now_ms: int, _log_start_offset: int = 0, _log_end_offset: int = 0, /) -> None:
        """Start to serve. The first ticks send the markers of decided transactions."""

    # --- Serve ---

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next tick, unless an event comes first; None: no tick is needed."""
        if self._is_superseded:
            return None
        deadlines = (self._deadlines.first_ms, self._adding.waiting.next_deadline_ms)
        return min((one for one in deadlines if one is not None), default=None)

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Handle one event; return the effects, in order. Raises InvariantViolation for a bug."""
        match event:
            case events.RequestReceived(request_id=request_id, request=request):
                self._handle_request(now_ms, request_id, request)
            case events.WriteEnded(write_id=write_id, error_code=error_code):
                self._handle_write_ended(now_ms, write_id, error_code)
            case events.ProducerIdAllocated():
                self._handle_allocated(now_ms, event)
            case events.MarkersWritten():
                self._handle_markers_written(now_ms, event)
            case events.PartitionsDeleted(partitions=partitions):
                for transactional_id in sorted(self._prepared):
                    transaction = self.transactions[transactional_id]
                    self._markers.handle_deleted(transaction, partitions)
                    self._maybe_complete(transaction, now_ms)
            case events.TransactionVersionChanged(transaction_version=transaction_version):
                self._outbox.transaction_version = transaction_version
            case events.BecameLeader(leader_epoch=leader_epoch):
                self._is_superseded = False
                self._markers.coordinator_epoch = leader_epoch
            case events.Ticked() | events.ClockAdvanced():  # its deadlines go by the wall clock
                self._handle_tick(now_ms)
            case _:
                assert_never(event)
        return self._outbox.drain()

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Return the committed state of an id."""
        transaction = self.transactions.get(transactional_id)
        if not transactional_id or transaction is None or transaction.is_new:
            absent = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return TransactionDescription(
                error_code=absent if transactional_id else ErrorCode.INVALID_REQUEST,
                transactional_id=transactional_id,
            )
        metadata = transaction.metadata
        return TransactionDescription(
            error_code=ErrorCode.NONE,
            transactional_id=transactional_id,
            state=transaction.state,
            producer=transaction.producer,
            transaction_timeout_ms=metadata.transaction_timeout_ms,
            start_ms=metadata.start_ms,
            partitions=metadata.partitions,
        )

    def list_transactions(self, now_ms: int, wanted: TransactionFilter) -> list[ListedTransaction]:
        """Return the ids that pass the filter, sorted. A state that does not exist passes no id."""

        def passes(transactional_id: str, transaction: Transaction) -> bool:
            has_wanted_id = wanted.matches_id is None or wanted.matches_id(transactional_id)
            is_of_producer = (
                not wanted.producer_ids or transaction.producer.producer_id in wanted.producer_ids
            )
            has_state = not wanted.states or transaction.state.value in wanted.states
            lasts = wanted.duration_ms < 0 or (
                now_ms - transaction.metadata.start_ms > wanted.duration_ms
            )
            return has_wanted_id and is_of_producer and has_state and lasts

        return [
            ListedTransaction(
                transactional_id=transactional_id,
                producer_id=transaction.producer.producer_id,
                transaction_state=transaction.state.value,
            )
            for transactional_id, transaction in sorted(self.transactions.items())
            if not transaction.is_new and passes(transactional_id, transaction)
        ]

    def _handle_request(self, now_ms: int, request_id: int, request: Request) -> None:
        error_code = self._refusal(request)
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, request.refuse(error_code))
            return
        transactional_id = request.transactional_id
        transaction = self.transactions.get(transactional_id)
        # An id exists for these requests only once its first record is committed.
        known = None if transaction is None or transaction.is_new else transaction
        match request:
            case InitProducerId():
                if transaction is None:
                    transaction = Transaction(transactional_id)
                    self.transactions[transactional_id] = transaction
                self._initialization.handle(transaction, now_ms, request_id, request)
            case AddPartitions() | AddOffsets():
                self._adding.handle(known, now_ms, request_id, request)
            case EndTransaction():
                self._ending.handle(known, now_ms, request_id, request)
            case _:
                assert_never(request)
        self._settle(now_ms, transactional_id)

    def _refusal(self, request: Request) -> ErrorCode:
        """Return the error of a request, whatever the state of its id; NONE: it is valid."""
        if self._is_superseded:
            return ErrorCode.NOT_COORDINATOR
        size = len(request.transactional_id.encode())
        if not 0 < size <= NAME_BYTES_MAX:
            return ErrorCode.INVALID_REQUEST
        if isinstance(request, InitProducerId):
            return self._initialization.refusal(request)
        return ErrorCode.NONE

    def _handle_write_ended(self, now_ms: int, write_id: int, error_code: ErrorCode) -> None:
        write = self._outbox.finish(write_id)
        for record in write.records:
            transaction = self.transactions[record.transactional_id]
            if error_code is not ErrorCode.NONE:
                transaction.give_up()
                transaction.back_off(now_ms)
            elif record.metadata is None:
                transaction.die()
                del self.transactions[record.transactional_id]
            else:
                transaction.apply(record.metadata)
        write.done(now_ms, error_code)
        for transactional_id in dict.fromkeys(one.transactional_id for one in write.records):
            self._after_change(now_ms, transactional_id, error_code)

    def _after_change(self, now_ms: int, transactional_id: str, error_code: ErrorCode) -> None:
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and error_code is ErrorCode.NONE and not self._is_superseded:
            self._markers.resume(transaction, now_ms)
        self._settle(now_ms, transactional_id)

    def _handle_allocated(self, now_ms: int, event: events.ProducerIdAllocated) -> None:
        done = self._outbox.allocated(event.transactional_id)
        if done is None:
            return
        if event.error_code is not ErrorCode.NONE:
            transaction = self.transactions[event.transactional_id]
            transaction.back_off(now_ms)
        done(now_ms, event.producer_id, event.error_code)
        self._settle(now_ms, event.transactional_id)

    def _handle_markers_written(self, now_ms: int, event: events.MarkersWritten) -> None:
        is_fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED in event.errors.values()
        if is_fenced and event.coordinator_epoch == self._markers.coordinator_epoch:
            self._is_superseded = True
            self._adding.refuse_all(ErrorCode.NOT_COORDINATOR)
        transaction = self.transactions.get(event.transactional_id)
        if transaction is not None:
            self._markers.handle_written(transaction, now_ms, event)
            self._maybe_complete(transaction, now_ms)

    def _maybe_complete(self, transaction: Transaction, now_ms: int) -> None:
        if not transaction.unmarked and not self._is_superseded:
            self._markers.resume(transaction, now_ms)
        self._settle(now_ms, transaction.transactional_id)

    # --- Time ---

    def _handle_tick(self, now_ms: int) -> None:
        if self._is_superseded:
            return
        due = self._deadlines.due(now_ms, DUE_AT_ONCE)
        for transactional_id in due:
            transaction = self.transactions[transactional_id]
            if transaction.state is TransactionState.ONGOING:
                self._ending.fence(transaction, now_ms, lambda _now_ms, _error_code: None)
            elif transaction.state in PREPARED:
                self._markers.resume(transaction, now_ms)
            else:
                self._expiry.maybe_expire(transaction, now_ms)
        self._expiry.write_tombstones()
        for transactional_id in due:
            self._settle(now_ms, transactional_id)
        self._adding.answer_late(now_ms, DUE_AT_ONCE)

    def _settle(self, now_ms: int, transactional_id: str) -> None:
        """Handle the additions held for an id that may have changed, then `_note` it."""
        self._adding.resume(self.transactions.get(transactional_id), now_ms, transactional_id)
        self._note(transactional_id)

    def _note(self, transactional_id: str) -> None:
        """Check an id that may have changed, and set its deadline."""
        transaction = self.transactions.get(transactional_id)
        self._check_progress(transactional_id, transaction)
        self._prepared.discard(transactional_id)
        if transaction is None:
            self._deadlines.set(transactional_id, None)
            return
        if transaction.is_new and transaction.pending is None:
            del self.transactions[transactional_id]  # its first record was not written
            return
        transaction.check_invariants()
        if transaction.state in PREPARED:
            self._prepared.add(transactional_id)
        self._deadlines.set(transactional_id, self._deadline_ms(transaction))

    def check_progress(self) -> None:
        """Raise InvariantViolation if an id is busy, and neither an event nor a tick will come.

        It walks over all ids: tests and simulations call it, after a step. `_note` checks the ids
        of a step; this finds the ids that a step has changed and not noted.
        """
        if self._is_superseded:
            return
        prepared = set()
        for transactional_id, transaction in self.transactions.items():
            self._check_progress(transactional_id, transaction)
            known_ms, due_ms = self._deadlines.of(transactional_id), self._deadline_ms(transaction)
            if known_ms != due_ms:
                text = f"{transactional_id}: a tick at {known_ms}, due at {due_ms}"
                raise InvariantViolation(f"6: {text}")
            if transaction.state in PREPARED:
                prepared.add(transactional_id)
        require(prepared == self._prepared, "6: all decided transactions are known")

    def _check_progress(self, transactional_id: str, transaction: Transaction | None) -> None:
        """Raise InvariantViolation if a pending change is not under way, or the reverse."""
        under_way = self._outbox.changes_under_way(transactional_id)
        pending = 0 if transaction is None else transaction.pending_changes
        if pending != under_way:
            text = f"{transactional_id}: {pending} pending, {under_way} under way"
            require(False, f"5: {text}")
        self._adding.waiting.check_progress(transactional_id)

    def _deadline_ms(self, transaction: Transaction) -> int | None:
        if transaction.pending is not None:
            return None
        if transaction.state is TransactionState.ONGOING:
            due_ms = self._ending.deadline_ms(transaction.metadata)
        elif transaction.state in PREPARED:
            if transaction.awaits_markers:
                return None
            due_ms = 0
        else:
            due_ms = self._expiry.deadline_ms(transaction)
        return max(due_ms, transaction.not_before_ms)

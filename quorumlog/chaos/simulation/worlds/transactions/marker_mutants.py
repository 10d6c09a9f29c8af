"""Coordinators that break one rule of markers each: the world must find them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.transactions.core.events import MarkersWritten
from quorumlog.broker.transactions.core.markers import Markers
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.transactions.broken import broken_coordinator
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

MARKER_MUTANTS: Final = Mutants(broken_coordinator)


@MARKER_MUTANTS.breaks("markers are sent before the decision is committed")
class _SendsMarkersBeforeTheDecisionIsCommitted(Markers):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sent_for: set[tuple[str, int]] = set()  # else each response would send them again

    def go_on(self, transaction: Transaction, now_ms: int) -> None:
        is_open = transaction.state is TransactionState.ONGOING and transaction.pending is None
        if is_open and self._is_new(transaction):
            decided = replace(transaction.metadata, state=TransactionState.PREPARE_COMMIT)
            super().go_on(Transaction(transaction.transactional_id, decided), now_ms)
        super().go_on(transaction, now_ms)

    def _is_new(self, transaction: Transaction) -> bool:
        change = transaction.transactional_id, transaction.metadata.last_update_ms
        is_new = change not in self._sent_for
        self._sent_for.add(change)
        return is_new


@MARKER_MUTANTS.breaks("a transaction completes at its first written marker")
class _IsCompleteWithTheFirstMarker(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        if ErrorCode.NONE in event.errors.values():
            errors = dict.fromkeys(transaction.unmarked, ErrorCode.NONE)
            event = replace(event, errors=errors)
        super().handle_written(transaction, now_ms, event)


@MARKER_MUTANTS.breaks("a marker with an unknown outcome counts as written")
class _TakesAnyErrorForWritten(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        errors = dict.fromkeys(event.errors, ErrorCode.NONE)
        super().handle_written(transaction, now_ms, replace(event, errors=errors))


@MARKER_MUTANTS.breaks(
    "a WriteTxnMarkers response for an earlier decision counts for the current one"
)
class _TakesAnswersAboutEarlierDecisions(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        about_this = replace(event, prepared_ms=transaction.metadata.last_update_ms)
        super().handle_written(transaction, now_ms, about_this)


@MARKER_MUTANTS.breaks("a failed marker is not resent")
class _SendsMarkersOnce(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        written = {one: code for one, code in event.errors.items() if code is ErrorCode.NONE}
        super().handle_written(transaction, now_ms, replace(event, errors=written))


@MARKER_MUTANTS.breaks("a new coordinator does not send the markers of earlier decisions")
class _ForgetsWhatWasDecidedBefore(Markers):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._own: set[Transaction] = set()

    def go_on(self, transaction: Transaction, now_ms: int) -> None:
        if transaction.state not in PREPARED:
            self._own.add(transaction)
        elif transaction not in self._own:
            transaction.being_marked.update(transaction.unmarked)
        super().go_on(transaction, now_ms)


@MARKER_MUTANTS.breaks("a transaction waits for the markers of deleted partitions")
class _WaitsForMarkersOfDeletedPartitions(Markers):
    def handle_deleted(
        self, transaction: Transaction, partitions: Iterable[TopicPartition]
    ) -> None:
        pass

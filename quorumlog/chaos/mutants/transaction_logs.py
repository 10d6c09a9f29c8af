"""Transactions in a replica's log, with one broken rule each: verification, stable offsets."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Final

from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.pending_offsets import PendingOffset
from quorumlog.broker.partitions.core.open_transactions import OpenTransactions
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.verification import Guard, Guards
from quorumlog.broker.transactions.core.requests import EndTransaction
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.broker.transactions.core.transaction_end import TransactionEnd
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.parts import ChangedResponses, is_from_consumer
from quorumlog.storage.core.aborted_transactions import AbortedTransaction, AbortedTransactions
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.fetch import FetchRequest, FetchResponse
from quorumlog.wire.codec.records import BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker

TRANSACTION_LOGS: Final = Mutants("transactions")
OUTCOMES: Final = Mutants("transactions")
"""Whole nodes alone can run them."""


class _OtherEntries(Log):
    """A log with another class for its aborted transactions."""

    aborted_class: ClassVar[type[AbortedTransactions]] = AbortedTransactions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.aborted.__class__ = self.aborted_class


@TRANSACTION_LOGS.breaks(
    "a leader begins a transaction without verification by the coordinator (KIP-890)"
)
class _OpensTransactionsUnasked(ProducerStates):
    def must_verify(self, batch: BatchHeader) -> bool:
        del batch
        return False

    def check_transaction(self, batch: BatchHeader, guard: Guard | None, **_: bool) -> ErrorCode:
        return super().check_transaction(batch, guard, is_asked=False)


class _ForgivingGuards(Guards):
    def counts(self, producer_id: int, guard: Guard | None) -> bool:
        del producer_id
        return guard is not None


@TRANSACTION_LOGS.breaks("a verification from before the marker begins a transaction (KAFKA-14884)")
class _BelievesAnswersFromBeforeTheMarker(ProducerStates):
    def __init__(self) -> None:
        super().__init__()
        self.guards = _ForgivingGuards()  # type: ignore[misc]


@TRANSACTION_LOGS.breaks("a non-transactional batch is accepted during the producer's transaction")
class _TakesAnyBatchIntoTheTransaction(ProducerStates):
    def check_transaction(
        self, batch: BatchHeader, guard: Guard | None, *, is_asked: bool
    ) -> ErrorCode:
        if not batch.is_transactional:
            return ErrorCode.NONE
        return super().check_transaction(batch, guard, is_asked=is_asked)


@TRANSACTION_LOGS.breaks("a delayed marker ends the next transaction (KIP-1228)")
class _TakesLateMarkers(ProducerStates):
    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> ErrorCode:
        del transaction_version
        return super().check_marker(marker, 1)


@TRANSACTION_LOGS.breaks("a repeated marker is refused (KAFKA-19999)")
class _RefusesMarkersSentAgain(ProducerStates):
    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> ErrorCode:
        described = self.describe(marker.producer_id)
        if described is not None and described.producer_epoch >= marker.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return super().check_marker(marker, transaction_version)


@TRANSACTION_LOGS.breaks("a producer snapshot omits the first offsets of open transactions")
class _ForgetsWhereTransactionsBegan(ProducerStates):
    def snapshot(self) -> list[SnapshotEntry]:
        return [one._replace(transaction_offset=-1) for one in super().snapshot()]


@TRANSACTION_LOGS.breaks("a producer id expires during its open transaction (KAFKA-9144)")
class _ForgetsIdleProducersInTransactions(ProducerStates):
    def expire(self, wall_ms: int, expiration_ms: int) -> None:
        super().expire(wall_ms, expiration_ms)
        self._in_transaction.clear()


@TRANSACTION_LOGS.breaks("a producer id with an open transaction is evicted from the full table")
class _CountsThoseInTransactions(ProducerStates):
    def _add_idle(self, producer_id: int, producer: Any) -> None:
        super()._add_idle(producer_id, producer)
        if len(self) > 2 and self._in_transaction:
            self._in_transaction.pop(next(iter(self._in_transaction)))


class _StableWithTheMarker(OpenTransactions):
    __slots__ = ()

    def end(self, first_offset: int, marker_offset: int) -> int:
        stable = super().end(first_offset, marker_offset)
        self.committed_to(marker_offset + 1)
        return stable


class _OtherTransactions(ProducerStates):
    """A log with another class for its open transactions, also for those that it recovers."""

    transactions_class: ClassVar[type[OpenTransactions]] = OpenTransactions

    def __init__(self) -> None:
        super().__init__()
        self.transactions.__class__ = self.transactions_class

    def rebuild(self, batches: Iterable[BatchHeader], known: Iterable[SnapshotEntry] = ()) -> None:
        super().rebuild(batches, known)
        self.transactions.__class__ = self.transactions_class


@TRANSACTION_LOGS.breaks(
    "the last stable offset passes a transaction before its marker is committed"
)
class _IsStableBeforeTheMarkerIsCommitted(_OtherTransactions):
    transactions_class = _StableWithTheMarker


class _StableWithTheNext(OpenTransactions):
    __slots__ = ()

    def committed_to(self, high_watermark: int) -> None:
        super().committed_to(high_watermark + 1)


@TRANSACTION_LOGS.breaks(
    "the last stable offset passes a transaction one offset before its marker is committed"
)
class _IsStableOneOffsetTooEarly(_OtherTransactions):
    transactions_class = _StableWithTheNext


class _NamesOnlyWhatEndsInTheRangeEntries(AbortedTransactions):
    def reaching_into(self, from_offset: int, end_offset: int) -> list[AbortedTransaction]:
        found = super().reaching_into(from_offset, end_offset)
        return [one for one in found if one.last_offset < end_offset]


@TRANSACTION_LOGS.breaks(
    "a fetch response omits an aborted transaction that ends behind its records"
)
class _NamesOnlyWhatEndsInTheRange(_OtherEntries):
    aborted_class = _NamesOnlyWhatEndsInTheRangeEntries


class _NamesOnlyTheFirstEntries(AbortedTransactions):
    def reaching_into(self, from_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return super().reaching_into(from_offset, end_offset)[:1]


@TRANSACTION_LOGS.breaks("a fetch response names only the first aborted transaction")
class _NamesOnlyTheFirst(_OtherEntries):
    aborted_class = _NamesOnlyTheFirstEntries


# --- outcomes that a client reads ---


@OUTCOMES.breaks("a read_committed consumer reads past the last stable offset")
class _ShowsOpenTransactions(ProducerStates):
    def __setattr__(self, name: str, value: object) -> None:  # also after `rebuild`
        super().__setattr__(name, _NothingHoldsBack() if name == "transactions" else value)


class _NothingHoldsBack(OpenTransactions):
    __slots__ = ()

    def last_stable_offset(self, log_start_offset: int, high_watermark: int) -> int:
        del log_start_offset
        return high_watermark


@OUTCOMES.breaks("a fetch response omits the aborted transactions")
class _HidesAbortedTransactions(ChangedResponses):
    api_key = FetchRequest.API_KEY

    def changed(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        for topic in response.responses if is_from_consumer(request) else ():
            for partition in topic.partitions:
                partition.aborted_transactions = None
        return response


@OUTCOMES.breaks("a transaction is committed although its producer aborts it")
class _CommitsWhatIsAborted(TransactionEnd):
    def _decide(
        self, transaction: Transaction, now_ms: int, request_id: int, request: EndTransaction
    ) -> None:
        super()._decide(transaction, now_ms, request_id, replace(request, commit=True))


@OUTCOMES.breaks("a group keeps the offsets of an aborted transaction")
class _KeepsOffsetsOfTheAborted(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        del commits
        return super().end_transaction(producer_id, commits=True)

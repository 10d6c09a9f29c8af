"""Replicas that break one rule of transactions in a log each: the world must find them."""

from collections.abc import Iterable
from typing import Any, ClassVar, Final

from quorumlog.broker.partitions.core.open_transactions import OpenTransactions
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.verification import Guard, Guards
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.transactions.broken import broken_replica
from quorumlog.storage.core.aborted_transactions import AbortedTransaction, AbortedTransactions
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker

LOG_MUTANTS: Final = Mutants(broken_replica)


class _OtherEntries(Log):
    """A log with another class for its aborted transactions."""

    aborted_class: ClassVar[type[AbortedTransactions]] = AbortedTransactions

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.aborted.__class__ = self.aborted_class


@LOG_MUTANTS.breaks(
    "a leader begins a transaction without verification by the coordinator (KIP-890)"
)
class _OpensTransactionsUnasked(ProducerStates):
    def must_verify(self, batch: BatchHeader) -> bool:
        del batch
        return False

    def check_transaction(
        self, batch: BatchHeader, guard: Guard | None, *, is_asked: bool
    ) -> ErrorCode:
        del is_asked
        return super().check_transaction(batch, guard, is_asked=False)


class _ForgivingGuards(Guards):
    def counts(self, producer_id: int, guard: Guard | None) -> bool:
        del producer_id
        return guard is not None


@LOG_MUTANTS.breaks("a verification from before the marker begins a transaction (KAFKA-14884)")
class _BelievesAnswersFromBeforeTheMarker(ProducerStates):
    def __init__(self) -> None:
        super().__init__()
        self.guards = _ForgivingGuards()  # type: ignore[misc]


@LOG_MUTANTS.breaks("a non-transactional batch is accepted during the producer's transaction")
class _TakesAnyBatchIntoTheTransaction(ProducerStates):
    def check_transaction(
        self, batch: BatchHeader, guard: Guard | None, *, is_asked: bool
    ) -> ErrorCode:
        if not batch.is_transactional:
            return ErrorCode.NONE
        return super().check_transaction(batch, guard, is_asked=is_asked)


@LOG_MUTANTS.breaks("a delayed marker ends the next transaction (KIP-1228)")
class _TakesLateMarkers(ProducerStates):
    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> ErrorCode:
        del transaction_version
        return super().check_marker(marker, 1)


@LOG_MUTANTS.breaks("a repeated marker is refused (KAFKA-19999)")
class _RefusesMarkersSentAgain(ProducerStates):
    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> ErrorCode:
        described = self.describe(marker.producer_id)
        if described is not None and described.producer_epoch >= marker.producer_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return super().check_marker(marker, transaction_version)


@LOG_MUTANTS.breaks("a producer snapshot omits the first offsets of open transactions")
class _ForgetsWhereTransactionsBegan(ProducerStates):
    def snapshot(self) -> list[SnapshotEntry]:
        return [one._replace(transaction_offset=-1) for one in super().snapshot()]


@LOG_MUTANTS.breaks("a producer id expires during its open transaction (KAFKA-9144)")
class _ForgetsIdleProducersInTransactions(ProducerStates):
    def expire(self, wall_ms: int, expiration_ms: int) -> None:
        super().expire(wall_ms, expiration_ms)
        self._in_transaction.clear()


@LOG_MUTANTS.breaks("a producer id with an open transaction is evicted from the full table")
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


@LOG_MUTANTS.breaks("the last stable offset passes a transaction before its marker is committed")
class _IsStableBeforeTheMarkerIsCommitted(_OtherTransactions):
    transactions_class = _StableWithTheMarker


class _StableWithTheNext(OpenTransactions):
    __slots__ = ()

    def committed_to(self, high_watermark: int) -> None:
        super().committed_to(high_watermark + 1)


@LOG_MUTANTS.breaks(
    "the last stable offset passes a transaction one offset before its marker is committed"
)
class _IsStableOneOffsetTooEarly(_OtherTransactions):
    transactions_class = _StableWithTheNext


class _NamesOnlyWhatEndsInTheRangeEntries(AbortedTransactions):
    def reaching_into(self, from_offset: int, end_offset: int) -> list[AbortedTransaction]:
        found = super().reaching_into(from_offset, end_offset)
        return [one for one in found if one.last_offset < end_offset]


@LOG_MUTANTS.breaks("a fetch response omits an aborted transaction that ends behind its records")
class _NamesOnlyWhatEndsInTheRange(_OtherEntries):
    aborted_class = _NamesOnlyWhatEndsInTheRangeEntries


class _NamesOnlyTheFirstEntries(AbortedTransactions):
    def reaching_into(self, from_offset: int, end_offset: int) -> list[AbortedTransaction]:
        return super().reaching_into(from_offset, end_offset)[:1]


@LOG_MUTANTS.breaks("a fetch response names only the first aborted transaction")
class _NamesOnlyTheFirst(_OtherEntries):
    aborted_class = _NamesOnlyTheFirstEntries

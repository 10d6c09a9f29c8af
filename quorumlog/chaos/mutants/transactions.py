"""Transaction coordinators with one broken rule each: transactional ids, endings, markers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.transactions.core import transaction_end
from quorumlog.broker.transactions.core.events import MarkersWritten
from quorumlog.broker.transactions.core.expiry import Expiry
from quorumlog.broker.transactions.core.markers import Markers
from quorumlog.broker.transactions.core.outbox import WriteDone
from quorumlog.broker.transactions.core.partition_additions import Addition, PartitionAdditions
from quorumlog.broker.transactions.core.producer_initialization import ProducerInitialization
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    AddPartitions,
    AddPartitionsResult,
    EndTransaction,
    InitProducerId,
    ProducerIdAndEpoch,
)
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.broker.transactions.core.transaction_end import TransactionEnd
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

COORDINATORS: Final = Mutants("transactions")


# --- transactional ids ---


@COORDINATORS.breaks("two producers of one transactional id get the same producer epoch")
class _GivesTheSameEpochTwice(ProducerInitialization):
    def _resume(
        self, transaction: Transaction, now_ms: int, request_id: int, request: InitProducerId
    ) -> None:
        transaction.begin(TransactionState.EMPTY)
        timeout_ms, producer = request.transaction_timeout_ms, transaction.producer
        metadata = transaction.initialized(now_ms, producer, timeout_ms, -1)
        self._write(transaction, metadata, request_id, request)


@COORDINATORS.breaks("a replaced producer continues with its successor's producer epoch")
class _LetsTheReplacedComeBack(ProducerInitialization):
    def _resume(
        self, transaction: Transaction, now_ms: int, request_id: int, request: InitProducerId
    ) -> None:
        if request.expected == NO_PRODUCER:
            known = replace(request, expected=transaction.producer)
            super()._resume(transaction, now_ms, request_id, known)
        else:
            super()._resume(transaction, now_ms, request_id, request)


@COORDINATORS.breaks("a fenced producer aborts its successor's transaction (decision 33)")
class _LetsAnyEpochAbortAnOpenTransaction(ProducerInitialization):
    def _busy_or_fenced(self, transaction: Transaction, expected: ProducerIdAndEpoch) -> ErrorCode:
        if transaction.state is TransactionState.ONGOING and not transaction.is_busy:
            return ErrorCode.NONE
        return super()._busy_or_fenced(transaction, expected)


@COORDINATORS.breaks("a fenced producer adds partitions to its successor's transaction")
class _AddsForAnyEpoch(PartitionAdditions):
    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        epoch = transaction.producer.epoch
        requests = [one.request for one in additions]
        known = [replace(one, producer=one.producer._replace(epoch=epoch)) for one in requests]
        told = [
            Addition(one.request_id, request) for one, request in zip(additions, known, strict=True)
        ]
        super()._add(transaction, now_ms, told)


@COORDINATORS.breaks("a coordinator confirms partitions outside the transaction (KIP-890)")
class _VerifiesWhatIsNotThere(PartitionAdditions):
    def _verify(self, transaction: Transaction, request_id: int, request: AddPartitions) -> None:
        outcomes = dict.fromkeys(request.partitions, ErrorCode.NONE)
        if transaction.refusal_of(request.producer) is ErrorCode.NONE:
            self._outbox.reply(request_id, AddPartitionsResult(partitions=outcomes))
        else:
            super()._verify(transaction, request_id, request)


@COORDINATORS.breaks("AddPartitionsToTxn is acknowledged before its record is committed")
class _SaysThatPartitionsAreAddedAtOnce(PartitionAdditions):
    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        producer = transaction.producer
        fine = [one for one in additions if one.request.producer == producer]
        if not fine:
            super()._add(transaction, now_ms, additions)
            return
        self._refuse(fine, ErrorCode.NONE)
        transaction.begin(TransactionState.ONGOING)
        wanted = {where for one in fine for where in one.request.partitions}
        metadata = transaction.with_partitions(now_ms, wanted, 0)
        self._outbox.write(transaction, metadata, lambda _now_ms, _error_code: None)


@COORDINATORS.breaks("adding a partition drops the partitions added before")
class _ForgetsPartitionsThatWereAddedBefore(PartitionAdditions):
    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        metadata = transaction.metadata
        asked = {where for one in additions for where in one.request.partitions}
        if not asked <= {*metadata.partitions}:
            transaction._metadata = replace(metadata, partitions=())  # noqa: SLF001 - a mutant
        super()._add(transaction, now_ms, additions)
        transaction._metadata = metadata  # noqa: SLF001 - a mutant


@COORDINATORS.breaks("a transactional id expires while it is in use")
class _ExpiresTooEarly(Expiry):
    def deadline_ms(self, transaction: Transaction) -> int:
        return super().deadline_ms(transaction) - 995_000


# --- endings ---


@COORDINATORS.breaks("EndTxn is acknowledged before the decision is committed")
class _TellsTheOutcomeBeforeItIsCommitted(TransactionEnd):
    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        transaction, now_ms, to, version, done = arguments
        if is_fence:
            super()._prepare(*arguments, is_fence=is_fence)
            return
        super()._prepare(transaction, now_ms, to, version, lambda _now_ms, _error_code: None)
        done(now_ms, ErrorCode.NONE)


@COORDINATORS.breaks("an EndTxn with a future producer epoch ends a transaction (KAFKA-9600)")
class _TakesNewerEpochs(TransactionEnd):
    def handle(
        self, transaction: Transaction | None, now_ms: int, request_id: int, request: EndTransaction
    ) -> None:
        if transaction is not None and request.producer.epoch > transaction.producer.epoch:
            request = replace(request, producer=transaction.producer)
        super().handle(transaction, now_ms, request_id, request)


@COORDINATORS.breaks("a delayed EndTxn ends the next transaction (KAFKA-17754)")
class _TakesTheEpochBefore(TransactionEnd):
    def handle(
        self, transaction: Transaction | None, now_ms: int, request_id: int, request: EndTransaction
    ) -> None:
        if transaction is not None and request.producer.epoch == transaction.producer.epoch - 1:
            request = replace(request, producer=transaction.producer)
        super().handle(transaction, now_ms, request_id, request)


@COORDINATORS.breaks("the coordinator aborts a transaction without bumping the producer epoch")
class _FencesWithoutAnEpoch(TransactionEnd):
    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        transaction, now_ms, to, version, done = arguments
        if is_fence:
            transaction.pending = None
            transaction.begin(to)
        super()._prepare(transaction, now_ms, to, version, done)


@COORDINATORS.breaks("an abort by the coordinator bumps the producer epoch twice (KAFKA-19367)")
class _FencesWithTwoEpochs(TransactionEnd):
    def fence(self, transaction: Transaction, now_ms: int, done: WriteDone) -> None:
        metadata = transaction.metadata
        epoch = metadata.producer_epoch + 1
        transaction._metadata = replace(metadata, producer_epoch=epoch)  # noqa: SLF001 - a mutant
        super().fence(transaction, now_ms, done)
        transaction._metadata = metadata  # noqa: SLF001 - a mutant


@COORDINATORS.breaks(
    "the last epoch of a producer id is used like any other (KAFKA-20090, KAFKA-18660)"
)
class _UsesTheLastEpochAsAnyOther(TransactionEnd):
    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        names = vars(transaction_end)
        exhausted = names["is_exhausted"]
        try:
            names["is_exhausted"] = lambda _epoch: False
            super()._prepare(*arguments, is_fence=is_fence)
        finally:
            names["is_exhausted"] = exhausted


@COORDINATORS.breaks("a repeated EndTxn succeeds even if the transaction ended otherwise")
class _GrantsRepeatedRequestsWhateverTheOutcome(TransactionEnd):
    def _validate_v2(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        if not transaction.is_busy and self._is_retry(transaction, producer):
            return ErrorCode.NONE
        return super()._validate_v2(transaction, producer, commit=commit)


@COORDINATORS.breaks("a commit after the coordinator's abort gets a fatal error (KAFKA-20785)")
class _CallsCommitsBehindTimeoutsMistakes(TransactionEnd):
    def _validate_v2(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        outcome = super()._validate_v2(transaction, producer, commit=commit)
        is_retry = not transaction.is_busy and self._is_retry(transaction, producer)
        is_fenced = outcome is ErrorCode.PRODUCER_FENCED
        return ErrorCode.INVALID_TXN_STATE if is_retry and is_fenced else outcome


@COORDINATORS.breaks(
    "a producer is fenced while its last transaction's markers are written (KAFKA-18464)"
)
class _JudgesTheEpochBeforeItWaits(TransactionEnd):
    def _validate_v2(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        error_code = transaction.refusal_of(producer)
        if transaction.is_busy and error_code is not ErrorCode.NONE:
            return error_code
        return super()._validate_v2(transaction, producer, commit=commit)


@COORDINATORS.breaks("an EndTxn with any older producer epoch counts as a retry of the last EndTxn")
class _CountsAnyOlderEpochAsRepeated(TransactionEnd):
    def _is_retry(self, transaction: Transaction, producer: ProducerIdAndEpoch) -> bool:
        newest = transaction.metadata.producer_epoch - 1
        is_older = producer.epoch < newest and producer.producer_id == transaction.producer[0]
        return super()._is_retry(
            transaction, producer._replace(epoch=newest) if is_older else producer
        )


# --- markers ---


@COORDINATORS.breaks("markers are sent before the decision is committed")
class _SendsMarkersBeforeTheDecisionIsCommitted(Markers):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sent_for: set[tuple[str, int]] = set()  # else each response would send them again

    def resume(self, transaction: Transaction, now_ms: int) -> None:
        is_open = transaction.state is TransactionState.ONGOING and transaction.pending is None
        if is_open and self._is_new(transaction):
            decided = replace(transaction.metadata, state=TransactionState.PREPARE_COMMIT)
            super().resume(Transaction(transaction.transactional_id, decided), now_ms)
        super().resume(transaction, now_ms)

    def _is_new(self, transaction: Transaction) -> bool:
        change = transaction.transactional_id, transaction.metadata.last_update_ms
        is_new = change not in self._sent_for
        self._sent_for.add(change)
        return is_new


@COORDINATORS.breaks("a transaction completes at its first written marker")
class _IsCompleteWithTheFirstMarker(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        if ErrorCode.NONE in event.errors.values():
            errors = dict.fromkeys(transaction.unmarked, ErrorCode.NONE)
            event = replace(event, errors=errors)
        super().handle_written(transaction, now_ms, event)


@COORDINATORS.breaks("a marker with an unknown outcome counts as written")
class _TakesAnyErrorForWritten(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        errors = dict.fromkeys(event.errors, ErrorCode.NONE)
        super().handle_written(transaction, now_ms, replace(event, errors=errors))


@COORDINATORS.breaks(
    "a WriteTxnMarkers response for an earlier decision counts for the current one"
)
class _TakesAnswersAboutEarlierDecisions(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        about_this = replace(event, prepared_ms=transaction.metadata.last_update_ms)
        super().handle_written(transaction, now_ms, about_this)


@COORDINATORS.breaks("a failed marker is not resent")
class _SendsMarkersOnce(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        written = {one: code for one, code in event.errors.items() if code is ErrorCode.NONE}
        super().handle_written(transaction, now_ms, replace(event, errors=written))


@COORDINATORS.breaks("a new coordinator does not send the markers of earlier decisions")
class _ForgetsWhatWasDecidedBefore(Markers):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._own: set[Transaction] = set()

    def resume(self, transaction: Transaction, now_ms: int) -> None:
        if transaction.state not in PREPARED:
            self._own.add(transaction)
        elif transaction not in self._own:
            transaction.being_marked.update(transaction.unmarked)
        super().resume(transaction, now_ms)


@COORDINATORS.breaks("a transaction waits for the markers of deleted partitions")
class _WaitsForMarkersOfDeletedPartitions(Markers):
    def handle_deleted(
        self, transaction: Transaction, partitions: Iterable[TopicPartition]
    ) -> None:
        pass

"""Coordinators that break one rule of ending transactions each: the world must find them."""

from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.transactions.core import ending
from quorumlog.broker.transactions.core.ending import Ending
from quorumlog.broker.transactions.core.outbox import WriteDone
from quorumlog.broker.transactions.core.requests import EndTransaction, ProducerIdAndEpoch
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.transactions.broken import broken_coordinator
from quorumlog.wire.codec.error_codes import ErrorCode

ENDING_MUTANTS: Final = Mutants(broken_coordinator)


@ENDING_MUTANTS.breaks("EndTxn is acknowledged before the decision is committed")
class _TellsTheOutcomeBeforeItIsCommitted(Ending):
    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        transaction, now_ms, to, version, done = arguments
        if is_fence:
            super()._prepare(*arguments, is_fence=is_fence)
            return
        super()._prepare(transaction, now_ms, to, version, lambda _now_ms, _error_code: None)
        done(now_ms, ErrorCode.NONE)


@ENDING_MUTANTS.breaks("an EndTxn with a future producer epoch ends a transaction (KAFKA-9600)")
class _TakesNewerEpochs(Ending):
    def handle(
        self,
        transaction: Transaction | None,
        now_ms: int,
        request_id: int,
        request: EndTransaction,
    ) -> None:
        if transaction is not None and request.producer.epoch > transaction.producer.epoch:
            request = replace(request, producer=transaction.producer)
        super().handle(transaction, now_ms, request_id, request)


@ENDING_MUTANTS.breaks("a delayed EndTxn ends the next transaction (KAFKA-17754)")
class _TakesTheEpochBefore(Ending):
    def handle(
        self,
        transaction: Transaction | None,
        now_ms: int,
        request_id: int,
        request: EndTransaction,
    ) -> None:
        if transaction is not None and request.producer.epoch == transaction.producer.epoch - 1:
            request = replace(request, producer=transaction.producer)
        super().handle(transaction, now_ms, request_id, request)


@ENDING_MUTANTS.breaks("the coordinator aborts a transaction without bumping the producer epoch")
class _FencesWithoutAnEpoch(Ending):
    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        transaction, now_ms, to, version, done = arguments
        if is_fence:
            transaction.pending = None
            transaction.begin(to)
        super()._prepare(transaction, now_ms, to, version, done)


@ENDING_MUTANTS.breaks("an abort by the coordinator bumps the producer epoch twice (KAFKA-19367)")
class _FencesWithTwoEpochs(Ending):
    def fence(self, transaction: Transaction, now_ms: int, done: WriteDone) -> None:
        metadata = transaction.metadata
        epoch = metadata.producer_epoch + 1
        transaction._metadata = replace(metadata, producer_epoch=epoch)  # noqa: SLF001 - a mutant
        super().fence(transaction, now_ms, done)
        transaction._metadata = metadata  # noqa: SLF001 - a mutant


@ENDING_MUTANTS.breaks(
    "the last epoch of a producer id is used like any other (KAFKA-20090, KAFKA-18660)"
)
class _UsesTheLastEpochAsAnyOther(Ending):
    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        names = vars(ending)
        exhausted = names["is_exhausted"]
        try:
            names["is_exhausted"] = lambda _epoch: False
            super()._prepare(*arguments, is_fence=is_fence)
        finally:
            names["is_exhausted"] = exhausted


@ENDING_MUTANTS.breaks("a repeated EndTxn succeeds even if the transaction ended otherwise")
class _GrantsRepeatedRequestsWhateverTheOutcome(Ending):
    def _judge_with_bump(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        if not transaction.is_busy and self._is_retry(transaction, producer):
            return ErrorCode.NONE
        return super()._judge_with_bump(transaction, producer, commit=commit)


@ENDING_MUTANTS.breaks("a commit after the coordinator's abort gets a fatal error (KAFKA-20785)")
class _CallsCommitsBehindTimeoutsMistakes(Ending):
    def _judge_with_bump(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        outcome = super()._judge_with_bump(transaction, producer, commit=commit)
        is_retry = not transaction.is_busy and self._is_retry(transaction, producer)
        is_fenced = outcome is ErrorCode.PRODUCER_FENCED
        return ErrorCode.INVALID_TXN_STATE if is_retry and is_fenced else outcome


@ENDING_MUTANTS.breaks(
    "a producer is fenced while its last transaction's markers are written (KAFKA-18464)"
)
class _JudgesTheEpochBeforeItWaits(Ending):
    def _judge_with_bump(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        error_code = transaction.refusal_of(producer)
        if transaction.is_busy and error_code is not ErrorCode.NONE:
            return error_code
        return super()._judge_with_bump(transaction, producer, commit=commit)

"""Coordinators that break one rule of transactional ids each: the world must find them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from quorumlog.broker.transactions.core.adding import Adding
from quorumlog.broker.transactions.core.deadlines import Expiry
from quorumlog.broker.transactions.core.held import Addition
from quorumlog.broker.transactions.core.initialization import Initialization
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    AddPartitions,
    AddPartitionsResult,
    InitProducerId,
    ProducerIdAndEpoch,
)
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.transactions.broken import broken_coordinator
from quorumlog.wire.codec.error_codes import ErrorCode

COORDINATOR_MUTANTS: Final = Mutants(broken_coordinator)


@COORDINATOR_MUTANTS.breaks("two producers of one transactional id get the same producer epoch")
class _GivesTheSameEpochTwice(Initialization):
    def _go_on(
        self, transaction: Transaction, now_ms: int, request_id: int, request: InitProducerId
    ) -> None:
        transaction.begin(TransactionState.EMPTY)
        timeout_ms, producer = request.transaction_timeout_ms, transaction.producer
        metadata = transaction.initialized(now_ms, producer, timeout_ms, -1)
        self._write(transaction, metadata, request_id, request)


@COORDINATOR_MUTANTS.breaks("a replaced producer continues with its successor's producer epoch")
class _LetsTheReplacedComeBack(Initialization):
    def _go_on(
        self, transaction: Transaction, now_ms: int, request_id: int, request: InitProducerId
    ) -> None:
        if request.expected == NO_PRODUCER:
            known = replace(request, expected=transaction.producer)
            super()._go_on(transaction, now_ms, request_id, known)
        else:
            super()._go_on(transaction, now_ms, request_id, request)


@COORDINATOR_MUTANTS.breaks("a fenced producer aborts its successor's transaction (decision 33)")
class _LetsAnyEpochAbortAnOpenTransaction(Initialization):
    def _busy_or_fenced(self, transaction: Transaction, expected: ProducerIdAndEpoch) -> ErrorCode:
        if transaction.state is TransactionState.ONGOING and not transaction.is_busy:
            return ErrorCode.NONE
        return super()._busy_or_fenced(transaction, expected)


@COORDINATOR_MUTANTS.breaks("a fenced producer adds partitions to its successor's transaction")
class _AddsForAnyEpoch(Adding):
    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        epoch = transaction.producer.epoch
        requests = [one.request for one in additions]
        known = [replace(one, producer=one.producer._replace(epoch=epoch)) for one in requests]
        told = [
            Addition(one.request_id, request) for one, request in zip(additions, known, strict=True)
        ]
        super()._add(transaction, now_ms, told)


@COORDINATOR_MUTANTS.breaks("a coordinator confirms partitions outside the transaction (KIP-890)")
class _VerifiesWhatIsNotThere(Adding):
    def _verify(self, transaction: Transaction, request_id: int, request: AddPartitions) -> None:
        outcomes = dict.fromkeys(request.partitions, ErrorCode.NONE)
        if transaction.refusal_of(request.producer) is ErrorCode.NONE:
            self._outbox.reply(request_id, AddPartitionsResult(partitions=outcomes))
        else:
            super()._verify(transaction, request_id, request)


@COORDINATOR_MUTANTS.breaks("AddPartitionsToTxn is acknowledged before its record is committed")
class _SaysThatPartitionsAreAddedAtOnce(Adding):
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


@COORDINATOR_MUTANTS.breaks("adding a partition drops the partitions added before")
class _ForgetsPartitionsThatWereAddedBefore(Adding):
    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        metadata = transaction.metadata
        asked = {where for one in additions for where in one.request.partitions}
        if not asked <= {*metadata.partitions}:
            transaction._metadata = replace(metadata, partitions=())  # noqa: SLF001 - a mutant
        super()._add(transaction, now_ms, additions)
        transaction._metadata = metadata  # noqa: SLF001 - a mutant


@COORDINATOR_MUTANTS.breaks("a transactional id expires while it is in use")
class _ExpiresTooEarly(Expiry):
    def deadline_ms(self, transaction: Transaction) -> int:
        return super().deadline_ms(transaction) - 995_000

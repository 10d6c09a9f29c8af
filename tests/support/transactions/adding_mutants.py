"""Ways to add partitions to a transaction, with one bug each: `test_transaction_mutants`."""

from collections.abc import Sequence
from dataclasses import replace

from quorumlog.broker.transactions.core.adding import Adding
from quorumlog.broker.transactions.core.held import Addition
from quorumlog.broker.transactions.core.outbox import Change
from quorumlog.broker.transactions.core.requests import AddPartitions, AddPartitionsResult
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.wire.codec.error_codes import ErrorCode


class AddsForAnyEpoch(Adding):
    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        epoch = transaction.producer.epoch
        requests = [one.request for one in additions]
        known = [replace(one, producer=one.producer._replace(epoch=epoch)) for one in requests]
        told = [
            Addition(one.request_id, request) for one, request in zip(additions, known, strict=True)
        ]
        super()._add(transaction, now_ms, told)


class VerifiesWhatIsNotThere(Adding):
    def _verify(self, transaction: Transaction, request_id: int, request: AddPartitions) -> None:
        outcomes = dict.fromkeys(request.partitions, ErrorCode.NONE)
        if transaction.refusal_of(request.producer) is ErrorCode.NONE:
            self._outbox.reply(request_id, AddPartitionsResult(partitions=outcomes))
        else:
            super()._verify(transaction, request_id, request)


class SaysThatPartitionsAreAddedAtOnce(Adding):
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


class ForgetsPartitionsThatWereAddedBefore(Adding):
    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        metadata = transaction.metadata
        asked = {where for one in additions for where in one.request.partitions}
        if not asked <= {*metadata.partitions}:
            transaction._metadata = replace(metadata, partitions=())
        super()._add(transaction, now_ms, additions)
        transaction._metadata = metadata


class WakesNobody(Adding):
    def go_on(self, transaction: Transaction | None, now_ms: int, transactional_id: str) -> None:
        pass


class WakesNobodyAfterARefusedWrite(Adding):
    def go_on(self, transaction: Transaction | None, now_ms: int, transactional_id: str) -> None:
        if transaction is None or not transaction.failures:
            super().go_on(transaction, now_ms, transactional_id)


class WakesOne(Adding):
    """The others have come with it, have they not?"""

    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        super()._add(transaction, now_ms, additions[:1])


class DropsAdditionsThatWaitForTooLong(Adding):
    def answer_late(self, now_ms: int, limit: int) -> None:
        self._held.take_late(now_ms, limit)


class BeginsTheNextTransactionForAnybody(Adding):
    def begins_behind(self, completed: Transaction, now_ms: int) -> Change | None:
        held = self._held.take(completed.transactional_id)
        return self._added(completed, now_ms, held) if held else None


ADDING_MUTANTS = (
    AddsForAnyEpoch,
    VerifiesWhatIsNotThere,
    SaysThatPartitionsAreAddedAtOnce,
    ForgetsPartitionsThatWereAddedBefore,
    WakesNobody,
    WakesNobodyAfterARefusedWrite,
    WakesOne,
    DropsAdditionsThatWaitForTooLong,
    BeginsTheNextTransactionForAnybody,
)

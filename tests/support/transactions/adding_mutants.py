"""Ways to lose additions that wait, with one bug each: `test_transaction_mutants`."""

from collections.abc import Sequence

from quorumlog.broker.transactions.core.adding import Adding
from quorumlog.broker.transactions.core.held import Addition
from quorumlog.broker.transactions.core.outbox import Change
from quorumlog.broker.transactions.core.transaction import Transaction


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
    WakesNobody,
    WakesNobodyAfterARefusedWrite,
    WakesOne,
    DropsAdditionsThatWaitForTooLong,
    BeginsTheNextTransactionForAnybody,
)

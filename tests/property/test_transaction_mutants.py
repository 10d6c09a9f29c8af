"""Rules of transactions with one bug each, which `test_transactions.py` must find.

Two are found by schedules that a random search seldom comes by.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.transactions.core import ending
from quorumlog.broker.transactions.core.ending import Ending
from quorumlog.broker.transactions.core.events import MarkersWritten
from quorumlog.broker.transactions.core.expiry import Expiry
from quorumlog.broker.transactions.core.initialization import Initialization
from quorumlog.broker.transactions.core.markers import Markers
from quorumlog.broker.transactions.core.outbox import WriteDone
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    EndTransaction,
    InitProducerId,
    ProducerIdAndEpoch,
)
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.broker.transactions.core.states import PREPARED, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.property.test_transactions import Transactions
from tests.support.transactions.adding_mutants import ADDING_MUTANTS
from tests.support.transactions.coordination import add, commit, init
from tests.support.transactions.healing import heal
from tests.support.transactions.world import PARTITIONS, World


class TellsTheOutcomeBeforeItIsCommitted(Ending):
    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        transaction, now_ms, to, version, done = arguments
        if is_fence:
            super()._prepare(*arguments, is_fence=is_fence)
            return
        super()._prepare(transaction, now_ms, to, version, lambda _now_ms, _error_code: None)
        done(now_ms, ErrorCode.NONE)


class SendsMarkersBeforeTheDecisionIsCommitted(Markers):
    def go_on(self, transaction: Transaction, now_ms: int) -> None:
        is_open = transaction.state is TransactionState.ONGOING and transaction.pending is None
        if is_open:
            decided = replace(transaction.metadata, state=TransactionState.PREPARE_COMMIT)
            super().go_on(Transaction(transaction.transactional_id, decided), now_ms)
        super().go_on(transaction, now_ms)


class IsCompleteWithTheFirstMarker(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        if ErrorCode.NONE in event.errors.values():
            errors = dict.fromkeys(transaction.unmarked, ErrorCode.NONE)
            event = replace(event, errors=errors)
        super().handle_written(transaction, now_ms, event)


class TakesAnyErrorForWritten(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        errors = dict.fromkeys(event.errors, ErrorCode.NONE)
        super().handle_written(transaction, now_ms, replace(event, errors=errors))


class TakesAnAnswerAboutAnEarlierDecision(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        about_this = replace(event, prepared_ms=transaction.metadata.last_update_ms)
        super().handle_written(transaction, now_ms, about_this)


class SendsAMarkerOnce(Markers):
    def handle_written(self, transaction: Transaction, now_ms: int, event: MarkersWritten) -> None:
        written = {one: code for one, code in event.errors.items() if code is ErrorCode.NONE}
        super().handle_written(transaction, now_ms, replace(event, errors=written))


class ForgetsWhatWasDecidedBefore(Markers):
    """The coordinator before has sent them, has it not?"""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._own: set[Transaction] = set()

    def go_on(self, transaction: Transaction, now_ms: int) -> None:
        if transaction.state not in PREPARED:
            self._own.add(transaction)
        elif transaction not in self._own:
            transaction.being_marked.update(transaction.unmarked)
        super().go_on(transaction, now_ms)


class WaitsForMarkersOfDeletedPartitions(Markers):
    def handle_deleted(
        self, transaction: Transaction, partitions: Iterable[TopicPartition]
    ) -> None:
        pass


class TakesANewerEpoch(Ending):
    """KAFKA-9600."""

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


class TakesTheEpochBefore(Ending):
    """KAFKA-17754: a late EndTxn ends the next transaction."""

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


class FencesWithoutAnEpoch(Ending):
    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        transaction, now_ms, to, version, done = arguments
        if is_fence:
            transaction.pending = None
            transaction.begin(to)
        super()._prepare(transaction, now_ms, to, version, done)


class FencesWithTwoEpochs(Ending):
    """KAFKA-19367."""

    def fence(self, transaction: Transaction, now_ms: int, done: WriteDone) -> None:
        metadata = transaction.metadata
        epoch = metadata.producer_epoch + 1
        transaction._metadata = replace(metadata, producer_epoch=epoch)
        super().fence(transaction, now_ms, done)
        transaction._metadata = metadata


class UsesTheLastEpochAsAnyOther(Ending):
    """KAFKA-20090, KAFKA-18660."""

    def _prepare(self, *arguments: Any, is_fence: bool = False) -> None:
        names = vars(ending)
        exhausted = names["is_exhausted"]
        try:
            names["is_exhausted"] = lambda epoch: False
            super()._prepare(*arguments, is_fence=is_fence)
        finally:
            names["is_exhausted"] = exhausted


class AnswersARepeatedRequestWhateverItsOutcome(Ending):
    def _judge_with_bump(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        if not transaction.is_busy and self._is_retry(transaction, producer):
            return ErrorCode.NONE
        return super()._judge_with_bump(transaction, producer, commit=commit)


class CallsACommitBehindATimeoutAMistake(Ending):
    """KAFKA-20785."""

    def _judge_with_bump(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        outcome = super()._judge_with_bump(transaction, producer, commit=commit)
        is_retry = not transaction.is_busy and self._is_retry(transaction, producer)
        is_fenced = outcome is ErrorCode.PRODUCER_FENCED
        return ErrorCode.INVALID_TXN_STATE if is_retry and is_fenced else outcome


class JudgesTheEpochBeforeItWaits(Ending):
    """KAFKA-18464."""

    def _judge_with_bump(
        self, transaction: Transaction, producer: ProducerIdAndEpoch, *, commit: bool
    ) -> ErrorCode | None:
        error_code = transaction.refusal_of(producer)
        if transaction.is_busy and error_code is not ErrorCode.NONE:
            return error_code
        return super()._judge_with_bump(transaction, producer, commit=commit)


class GivesTheSameEpochTwice(Initialization):
    def _go_on(
        self, transaction: Transaction, now_ms: int, request_id: int, request: InitProducerId
    ) -> None:
        transaction.begin(TransactionState.EMPTY)
        timeout_ms, producer = request.transaction_timeout_ms, transaction.producer
        metadata = transaction.initialized(now_ms, producer, timeout_ms, -1)
        self._write(transaction, metadata, request_id, request)


class LetsAReplacedProducerComeBack(Initialization):
    def _go_on(
        self, transaction: Transaction, now_ms: int, request_id: int, request: InitProducerId
    ) -> None:
        if request.expected == NO_PRODUCER:
            known = replace(request, expected=transaction.producer)
            super()._go_on(transaction, now_ms, request_id, known)
        else:
            super()._go_on(transaction, now_ms, request_id, request)


class LetsAnyEpochAbortAnOpenTransaction(Initialization):
    def _busy_or_fenced(self, transaction: Transaction, expected: ProducerIdAndEpoch) -> ErrorCode:
        if transaction.state is TransactionState.ONGOING and not transaction.is_busy:
            return ErrorCode.NONE
        return super()._busy_or_fenced(transaction, expected)


class ExpiresTooEarly(Expiry):
    def deadline_ms(self, transaction: Transaction) -> int:
        return super().deadline_ms(transaction) - 995_000


MUTANTS = {
    "initialization": (
        GivesTheSameEpochTwice,
        LetsAReplacedProducerComeBack,
        LetsAnyEpochAbortAnOpenTransaction,
    ),
    "adding": ADDING_MUTANTS,
    "ending": (
        TellsTheOutcomeBeforeItIsCommitted,
        TakesANewerEpoch,
        TakesTheEpochBefore,
        FencesWithoutAnEpoch,
        FencesWithTwoEpochs,
        UsesTheLastEpochAsAnyOther,
        AnswersARepeatedRequestWhateverItsOutcome,
        CallsACommitBehindATimeoutAMistake,
        JudgesTheEpochBeforeItWaits,
    ),
    "markers": (
        SendsMarkersBeforeTheDecisionIsCommitted,
        IsCompleteWithTheFirstMarker,
        SendsAMarkerOnce,
        ForgetsWhatWasDecidedBefore,
        WaitsForMarkersOfDeletedPartitions,
    ),
    "expiry": (ExpiresTooEarly,),
}
ALL = [(rule, kind) for rule, kinds in MUTANTS.items() for kind in kinds]
UNTIL_FOUND = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
)


@pytest.mark.planted
@pytest.mark.parametrize(("rule", "kind"), ALL, ids=[kind.__name__ for _, kind in ALL])
def test_a_mutant_is_found(rule: str, kind: type) -> None:
    mutated: TransactionRules = replace(SOUND, **{rule: kind})
    broken = type("Broken", (Transactions,), {"obeyed": mutated})
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(broken, settings=UNTIL_FOUND)


def run_into_a_late_answer(rules: TransactionRules) -> None:
    """A marker is written, and its answer is slow. The next coordinator sends it again.

    The answer comes when the next transaction of an older client, with the same epoch, is decided.
    """
    world = World(1, 0, (1, 1, 1), rules)
    client, where = world.clients[0], PARTITIONS[0]
    world.ask(client, init())
    world.end_write()
    for number in range(2):
        world.ask(client, add(client.known_as, where))
        world.end_write()
        world.produce(client, where)
        world.ask(client, commit(client.known_as, api_version=4))
        world.end_write()
        if number == 0:
            world.deliver(0, "slowly answered")
            world.change_coordinator(0, skew_ms=0, is_same=False)
            world.deliver(0, "written")
            world.end_write()
            world.check()
    world.answer(0)
    world.check()
    heal(world)


def run_into_a_lost_marker(rules: TransactionRules) -> None:
    """A marker is lost on its way, and the coordinator is told that it may be."""
    world = World(2, 0, (2, 2, 2), rules)
    client, where = world.clients[0], PARTITIONS[0]
    world.ask(client, init())
    world.end_write()
    world.ask(client, add(client.known_as, where, api_version=5))
    world.end_write()
    world.produce(client, where)
    world.ask(client, commit(client.known_as))
    world.end_write()
    world.deliver(0, "lost")
    world.check()
    heal(world)


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (run_into_a_late_answer, TakesAnAnswerAboutAnEarlierDecision),
        (run_into_a_lost_marker, TakesAnyErrorForWritten),
    ],
)
def test_a_mutant_is_found_by_a_schedule(
    run: Callable[[TransactionRules], None], kind: type[Markers]
) -> None:
    run(SOUND)
    with pytest.raises(AssertionError, match="c: complete, and"):
        run(replace(SOUND, markers=kind))

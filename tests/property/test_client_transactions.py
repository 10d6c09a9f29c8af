"""A transactional producer against a model of a coordinator, in any order of events.

Answers are lost, late, repeated, or errors of every class; requests are executed long after they
were given up; coordinators move; epochs run out; other producers take the transactional id over.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from quorumlog.client.core.accumulator import Accumulator
from quorumlog.client.core.batch import Batch
from quorumlog.client.core.transaction_attempts import TransactionAttempts
from quorumlog.client.core.transaction_requests import (
    Answer,
    Dispatch,
    EndTransaction,
    InitProducerId,
    TransactionRequest,
)
from quorumlog.client.core.transactions import TransactionBatches, Transactions, TransactionState
from quorumlog.client.errors import KafkaError
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.client.transaction_machine import AnySchedule
from tests.support.client.transaction_model import FATAL, OF_BATCHES, REFUSED_BEFORE
from tests.support.sizes import examples, tries

# Each breaks one rule.


class SendsToPartitionsThatAreNotAdded(Transactions):
    def may_send(self, topic_partition: TopicPartition) -> bool:
        return self.state in {TransactionState.IN_TRANSACTION, TransactionState.COMMITTING}


class EndsWhileBatchesAreInFlight(Transactions):
    def wanted(self, *, is_quiet: bool) -> TransactionRequest | None:
        return super().wanted(is_quiet=True)


class TakesTheAnswerOfAnyAttempt(TransactionAttempts):
    def handle_answer(
        self, now_ms: float, dispatch: Dispatch, answer: Answer, random_fraction: float
    ) -> None:
        asked = self._outstanding
        if asked is not None and type(asked.request) is type(dispatch.request):
            super().handle_answer(now_ms, asked, answer, random_fraction)


class KeepsTheEpochAfterALostRequest(Transactions):
    def note_doubt(self, request: TransactionRequest, *, is_late: bool) -> None:
        super().note_doubt(request, is_late=False)


class ForgetsThatACommitMayStand(Transactions):
    def note_doubt(self, request: TransactionRequest, *, is_late: bool) -> None:
        super().note_doubt(request, is_late=is_late)
        if self._outcome is not None:
            self._outcome.indefinite = False


class KeepsTheEpochAfterAFailedBatch(Transactions):
    def handle_failed_batch(self, error: KafkaError, *, was_sent: bool) -> KafkaError:
        return super().handle_failed_batch(error, was_sent=False)


class GoesOnAfterAFatalError(Transactions):
    def wanted(self, *, is_quiet: bool) -> TransactionRequest | None:
        if self.state is TransactionState.FATAL_ERROR:
            return self._current.wanted(self._identified()) or InitProducerId(identity=None)
        return super().wanted(is_quiet=is_quiet)


class IgnoresTheEpochOfAnEnd(Transactions):
    def take(self, request: TransactionRequest, answer: Answer, *, is_refused: bool) -> None:
        if isinstance(request, EndTransaction):
            answer = Answer(error_code=answer.error_code)
        super().take(request, answer, is_refused=is_refused)


class CountsOnInANewEpoch(Accumulator):
    def _may_number(self, queue: Any) -> bool:
        if queue.sequence is not None and self.identity is not None:
            queue.sequence = self.identity, queue.sequence[1]
        return super()._may_number(queue)


class KeepsWhatWaitsWhenItAborts(TransactionBatches):
    def sweep(self) -> list[Batch]:
        self._accumulator.identity = self._transactions.identity
        return []


class CommitsWithoutWhatHasFailed(Transactions):
    def handle_failed_batch(self, error: KafkaError, *, was_sent: bool) -> KafkaError:
        self._current.has_gaps = self._current.has_gaps or was_sent
        return error


MUTANTS: list[tuple[str, type]] = [
    ("transactions_class", SendsToPartitionsThatAreNotAdded),
    ("transactions_class", EndsWhileBatchesAreInFlight),
    ("attempts_class", TakesTheAnswerOfAnyAttempt),
    ("transactions_class", KeepsTheEpochAfterALostRequest),
    ("transactions_class", ForgetsThatACommitMayStand),
    ("transactions_class", KeepsTheEpochAfterAFailedBatch),
    ("transactions_class", GoesOnAfterAFatalError),
    ("transactions_class", IgnoresTheEpochOfAnEnd),
    ("accumulator_class", CountsOnInANewEpoch),
    ("batches_class", KeepsWhatWaitsWhenItAborts),
    ("transactions_class", CommitsWithoutWhatHasFailed),
]
OFTEN = [
    *["answer"] * 3, *["produce"] * 2, *["send"] * 2, "begin", "commit", "wait",
]  # fmt: skip
SELDOM = [
    *["repeat"] * 2, *["execute_late"] * 2, "abort", "send_offsets", "refuse", "refuse_batch",
    "execute_and_refuse", "move", "lose_an_answer", "lose_a_batch", "lose_the_end",
]  # fmt: skip
RARE = [*["forget"] * 2, "refuse_for_good", "time_out", "take_over"]


def lose_the_end(machine: AnySchedule, committed: bool) -> None:
    """EndTxn is given up and repeated, and executed once more in the next transaction."""
    (machine.commit if committed else machine.abort)()
    for _ in range(6):
        if machine.asked and isinstance(machine.asked[0].request, EndTransaction):
            machine.answer(fate="late")
            break
        machine.produce(index=0)
        machine.answer()
    for _ in range(4):
        machine.wait(elapsed_ms=150)
        machine.answer()
    machine.begin()
    machine.send(count=2, index=0)
    machine.answer()
    machine.produce(index=0)
    machine.execute_late(index=len(machine.late) - 1)


def moves(machine: AnySchedule, rng: Random) -> dict[str, Callable[[], None]]:
    """What a walk may do, by name."""
    fates = ["lost", "lost after", "late", "unsent"]
    return {
        "abort": machine.abort,
        "answer": machine.answer,
        "begin": machine.begin,
        "commit": machine.commit,
        "execute_and_refuse": lambda: machine.execute_and_refuse(
            code=ErrorCode.COORDINATOR_NOT_AVAILABLE
        ),
        "execute_late": lambda: machine.execute_late(index=rng.randrange(100)),
        "forget": machine.forget,
        "lose_an_answer": lambda: machine.answer(fate=rng.choice(fates)),
        "lose_a_batch": lambda: machine.produce(index=0, fate=rng.choice(fates)),
        "lose_the_end": lambda: lose_the_end(machine, rng.random() < 0.5),
        "move": machine.move,
        "produce": lambda: machine.produce(index=rng.choice((0, 0, 0, 1, 2))),
        "refuse": lambda: machine.refuse(code=rng.choice(REFUSED_BEFORE)),
        "refuse_batch": lambda: machine.refuse_batch(code=rng.choice(OF_BATCHES)),
        "refuse_for_good": lambda: machine.refuse_for_good(code=rng.choice(FATAL)),
        "repeat": lambda: machine.repeat_an_old_answer(index=rng.randrange(100)),
        "send": lambda: machine.send(count=rng.randint(1, 4), index=rng.randrange(2)),
        "send_offsets": lambda: machine.send_offsets(offset=rng.randrange(10)),
        "take_over": machine.take_over,
        "time_out": machine.time_out,
        "wait": lambda: machine.wait(elapsed_ms=rng.choice((10, 10, 60, 150, 1_900))),
    }


def walk(machine: AnySchedule, rng: Random, steps: int) -> None:
    machine.start(is_implicit=rng.random() < 0.5)
    for _ in range(rng.randrange(4)):
        machine.answer()
    by_name = moves(machine, rng)
    for _ in range(steps):
        kind = rng.random()
        by_name[rng.choice(OFTEN if kind < 0.7 else SELDOM if kind < 0.99 else RARE)]()
        machine.the_accumulator_is_consistent()
        machine.a_transaction_is_visible_as_it_was_said_to_end()
    machine.teardown()


def walk_often(machine_class: type[AnySchedule], seeds: range) -> None:
    for seed in seeds:
        walk(machine_class(), Random(seed), 80)


def test_transactions_are_whole_and_end_as_they_are_said_to() -> None:
    run_state_machine_as_test(AnySchedule, settings=examples(40, stateful_step_count=40))
    walk_often(AnySchedule, range(tries(600)))


@pytest.mark.planted
@pytest.mark.parametrize(("part", "mutant"), MUTANTS)
def test_a_mutant_is_found(part: str, mutant: type) -> None:
    mutated = type("Mutated", (AnySchedule,), {part: mutant})
    with pytest.raises((AssertionError, InvariantViolation)):
        walk_often(mutated, range(4_000))


def test_a_walk_commits_and_aborts() -> None:
    """The schedules get somewhere: else they would prove nothing."""
    ended: list[bool | None] = []
    for seed in range(60):
        machine = AnySchedule()
        walk(machine, Random(seed), 80)
        ended += [one.was_committed for one in machine.history.values() if one.values]
    assert min(ended.count(True), ended.count(False)) > 30

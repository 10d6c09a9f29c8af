"""The planted bugs of transaction coordinators, which `test_transactions.py` must find, too.

Two are found by schedules that a random search seldom comes by.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.transactions.core.outbox import Change
from quorumlog.broker.transactions.core.partition_additions import Addition, PartitionAdditions
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.chaos.mutants.transactions import COORDINATORS
from quorumlog.invariants import InvariantViolation
from tests.property.test_transactions import Transactions
from tests.support.transactions.coordination import add, commit, init
from tests.support.transactions.world import PARTITIONS, World

ALL = [*COORDINATORS]
UNTIL_FOUND = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
)


class WakesNobody(PartitionAdditions):
    def resume(self, transaction: Transaction | None, now_ms: int, transactional_id: str) -> None:
        pass


class WakesNobodyAfterARefusedWrite(PartitionAdditions):
    def resume(self, transaction: Transaction | None, now_ms: int, transactional_id: str) -> None:
        if transaction is None or not transaction.failures:
            super().resume(transaction, now_ms, transactional_id)


class WakesOne(PartitionAdditions):
    """The others have come with it, have they not?"""

    def _add(self, transaction: Transaction, now_ms: int, additions: Sequence[Addition]) -> None:
        super()._add(transaction, now_ms, additions[:1])


class DropsAdditionsThatWaitForTooLong(PartitionAdditions):
    def answer_late(self, now_ms: int, limit: int) -> None:
        self.waiting.take_late(now_ms, limit)


class BeginsTheNextTransactionForAnybody(PartitionAdditions):
    def begins_behind(self, completed: Transaction, now_ms: int) -> Change | None:
        held = self.waiting.take(completed.transactional_id)
        return self._added(completed, now_ms, held) if held else None


ADDING_MUTANTS = (
    WakesNobody,
    WakesOne,
    DropsAdditionsThatWaitForTooLong,
    BeginsTheNextTransactionForAnybody,
)


def committing(version: int, rules: TransactionRules) -> World:
    """Return a world in which the first client's marker is on its way."""
    world = World(version, 0, (version,) * 3, rules)
    world.ask(world.clients[0], init())
    world.end_write()
    commits(world)
    return world


def commits(world: World) -> None:
    client, where = world.clients[0], PARTITIONS[0]
    is_new = client.version == 2
    world.ask(client, add(client.producer, where, api_version=5 if is_new else 3))
    world.end_write()
    world.produce(client, where)
    world.ask(client, commit(client.producer, api_version=5 if is_new else 4))
    world.end_write()


def run_into_a_late_answer(rules: TransactionRules) -> None:
    """A marker is written, and its answer is slow. The next coordinator sends it again.

    The answer comes when the next transaction of an older client, with the same epoch, is decided.
    """
    world = committing(1, rules)
    world.deliver(0, "slowly answered")
    world.change_coordinator(0, skew_ms=0, is_same=False)
    world.deliver(0, "written")
    world.end_write()
    commits(world)
    world.answer(0)
    world.end_write()
    world.heal()


def run_into_a_lost_marker(rules: TransactionRules) -> None:
    """A marker is lost on its way, and the coordinator is told that it may be."""
    world = committing(2, rules)
    world.deliver(0, "lost")
    world.end_write()
    world.heal()


def run_into_a_refused_write(rules: TransactionRules) -> None:
    """An addition waits for a write, which is refused."""
    world = World(2, 0, (2, 2, 2), rules)
    client = world.clients[0]
    world.ask(client, init())
    world.end_write()
    for where in PARTITIONS[:2]:
        world.ask(client, add(client.producer, where, api_version=5))
    world.end_write(is_refused=True)
    world.check()
    world.heal()


SCRIPTS: dict[str, Callable[[TransactionRules], None]] = {
    "takes_answers_about_earlier_decisions": run_into_a_late_answer,
    "takes_any_error_for_written": run_into_a_lost_marker,
}


@pytest.mark.planted
@pytest.mark.parametrize("mutant", [one for one in ALL if one not in SCRIPTS])
def test_a_mutant_is_found(mutant: str) -> None:
    mutated = COORDINATORS[mutant].parts.transactions
    broken = type("Broken", (Transactions,), {"obeyed": mutated})
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(broken, settings=UNTIL_FOUND)


@pytest.mark.planted
@pytest.mark.parametrize("kind", ADDING_MUTANTS, ids=[kind.__name__ for kind in ADDING_MUTANTS])
def test_an_addition_that_is_lost_while_it_waits_is_found(kind: type[PartitionAdditions]) -> None:
    broken = type("Broken", (Transactions,), {"obeyed": replace(SOUND, adding=kind)})
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(broken, settings=UNTIL_FOUND)


@pytest.mark.parametrize("mutant", SCRIPTS)
def test_a_mutant_is_found_by_a_schedule(mutant: str) -> None:
    SCRIPTS[mutant](SOUND)
    with pytest.raises(AssertionError, match="c: complete, and"):
        SCRIPTS[mutant](COORDINATORS[mutant].parts.transactions)


def test_an_addition_that_waits_for_a_refused_write_is_found() -> None:
    run_into_a_refused_write(SOUND)
    with pytest.raises(AssertionError, match="e: nothing ends the wait"):
        run_into_a_refused_write(replace(SOUND, adding=WakesNobodyAfterARefusedWrite))

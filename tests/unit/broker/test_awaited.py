"""Whatever waits in a coordinator has an event to come, or a tick: a lost one is found at once."""

import pytest

from quorumlog.broker.groups.core.consumer.member_deadlines import DeadlineKey, DeadlineKind
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.chaos.mutants.groups import GROUPS
from quorumlog.invariants import InvariantViolation
from tests.support.groups.consumer.coordination import ConsumerCoordination
from tests.support.groups.consumer.coordination import join as consumer_join
from tests.support.groups.coordination import Coordination as GroupCoordination
from tests.support.groups.coordination import join
from tests.support.transactions.coordination import T0, Coordination, stored


def test_a_group_that_is_loaded_has_a_deadline_for_its_members() -> None:
    groups = GroupCoordination()
    groups.stable("a", "b")
    again = groups.reloaded()
    again.coordinator.check_progress()
    again.coordinator._classic._deadlines.set("g", None)
    with pytest.raises(InvariantViolation, match="7: g: a tick at None"):
        again.coordinator.check_progress()


def test_a_planted_bug_of_a_load_is_found_without_a_schedule() -> None:
    groups = GroupCoordination()
    groups.stable("a")
    rules = GROUPS["awaits_loaded_members_for_ever"].parts.groups
    with pytest.raises(InvariantViolation, match="7: g: a tick at None"):
        ConsumerCoordination(batches=groups.batches, rules=rules)


def test_a_tick_may_come_early_and_not_late() -> None:
    groups = GroupCoordination()
    groups.stable("a")
    due_ms = groups.coordinator.groups["g"].next_deadline_ms()
    assert due_ms is not None
    deadlines = groups.coordinator._classic._deadlines
    deadlines.set("g", due_ms - 1)
    groups.coordinator.check_progress()
    deadlines.set("g", due_ms + 1)
    with pytest.raises(InvariantViolation, match="7: g: a tick at"):
        groups.coordinator.check_progress()


def test_a_rebalance_and_a_generation_without_an_assignment_end() -> None:
    groups = GroupCoordination()
    groups.ask(join())
    group = groups.coordinator.groups["g"]
    group.check_progress()
    group.rebalance_deadline_ms = None
    with pytest.raises(InvariantViolation, match="7: a rebalance ends"):
        group.check_progress()
    groups = GroupCoordination()
    groups.ask(join())
    groups.tick(200)
    group = groups.coordinator.groups["g"]
    group.check_progress()
    group.sync_deadline_ms = None
    with pytest.raises(InvariantViolation, match="7: a generation"):
        group.check_progress()


@pytest.mark.parametrize("kind", [DeadlineKind.SESSION, DeadlineKind.REBALANCE])
def test_each_member_of_a_consumer_group_has_a_session_and_ends_its_revocation(
    kind: DeadlineKind,
) -> None:
    groups = ConsumerCoordination()
    groups.ask(consumer_join("a"))
    groups.commit_writes()
    groups.coordinator.check_progress()
    deadlines = groups.consumer._deadlines._deadlines
    key = DeadlineKey("g", "a", kind)
    deadlines.set(key, 1 if deadlines.of(key) is None else None)
    with pytest.raises(InvariantViolation, match=r"[12]: a"):
        groups.coordinator.check_progress()


@pytest.mark.parametrize(
    "state", [TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT, TransactionState.EMPTY]
)
def test_each_transactional_id_has_a_deadline(state: TransactionState) -> None:
    partitions = (T0,) if state is TransactionState.ONGOING else ()
    batch = stored(state=state, start_ms=1_000_000, partitions=partitions)
    ids = Coordination(batches=[batch])
    ids.coordinator.check_progress()
    ids.coordinator._deadlines.set("x", None)
    with pytest.raises(InvariantViolation, match="6: x: a tick at None"):
        ids.coordinator.check_progress()


def test_each_decided_transaction_is_known_to_those_who_watch_topics() -> None:
    batch = stored(state=TransactionState.PREPARE_COMMIT, start_ms=1_000_000, partitions=())
    ids = Coordination(batches=[batch])
    ids.coordinator._prepared.clear()
    with pytest.raises(InvariantViolation, match="6: all decided"):
        ids.coordinator.check_progress()

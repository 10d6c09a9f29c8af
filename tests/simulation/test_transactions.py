"""The world of transactions: seeds hold, and each rule finds a planted bug."""

import pytest

from quorumlog.chaos.simulation import WORLDS, replay, shrink, simulate
from tests.support.sizes import tries

WORLD = "transactions"

# One planted bug for each kind of rule; `docs/recall.md` has the run that finds each of the others.
FOUND = [
    ("gives_the_same_epoch_twice", "one-epoch"),
    ("lets_the_replaced_come_back", "fenced-acts"),
    ("lets_any_epoch_abort_an_open_transaction", "outcome"),
    ("tells_the_outcome_before_it_is_committed", "mistaken"),
    ("grants_repeated_requests_whatever_the_outcome", "told"),
    ("sends_markers_once", "liveness"),
    ("fences_with_two_epochs", "epochs"),
    ("says_that_partitions_are_added_at_once", "one-open"),
    ("is_stable_before_the_marker_is_committed", "stable"),
]


def test_seeds_hold() -> None:
    for seed in range(tries(8)):
        result = simulate(seed, world=WORLD, duration_ms=5_000)
        assert result.valid, result
        assert result.committed > 0


@pytest.mark.parametrize("seed", [724, 945, 1213, 1259])
def test_ids_expire_although_their_producers_are_not_told(seed: int) -> None:
    """A repeated EndTxn prolongs no id, and the first InitProducerId after that is granted."""
    result = simulate(seed, world=WORLD, duration_ms=20_000)
    assert result.valid, result


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_seeds_hold_with_other_numbers_of_brokers(nodes: int) -> None:
    for seed in range(2):
        result = simulate(seed, world=WORLD, nodes=nodes, duration_ms=3_000)
        assert result.valid, result


@pytest.mark.parametrize(("seed", "duration_ms"), [(1955, 5_000), (1614, 10_000)])
def test_a_new_topic_takes_a_batch_outside_of_a_transaction(seed: int, duration_ms: int) -> None:
    """Its log does not have the transaction; in the second run the producer goes on writing."""
    result = simulate(seed, world=WORLD, duration_ms=duration_ms)
    assert result.valid, result


def test_each_kind_of_fault_alone() -> None:
    for fault in WORLDS[WORLD].faults:
        result = simulate(7, world=WORLD, duration_ms=2_500, faults=[fault.name])
        assert result.valid, result


def test_readers_keep_up() -> None:
    """Else they see little during a long run, and have not read the rest when the calm is over."""
    result = simulate(8, world=WORLD, duration_ms=10_000, faults=())  # writes much
    assert result.valid, result
    assert result.simulated_ms < 15_000


@pytest.mark.planted
@pytest.mark.parametrize(("mutant", "rule"), FOUND)
def test_a_mutant_is_found(mutant: str, rule: str) -> None:
    violation = simulate(0, world=WORLD, mutant=mutant, duration_ms=10_000).violation
    assert violation is not None
    assert violation.startswith(f"{rule}: ")


@pytest.mark.planted
def test_a_failing_run_shrinks() -> None:
    mutant = "gives_the_same_epoch_twice"
    failing = simulate(0, world=WORLD, mutant=mutant, duration_ms=10_000)
    smallest = shrink(failing)
    assert len(smallest.actions) < len(failing.schedule.actions)
    again = replay(smallest, mutant=mutant)
    assert again.violation is not None
    assert again.violation.startswith("one-epoch: ")
    assert replay(smallest).valid

"""The quorum whose voters change: seeds hold, and mutants are found (KIP-853)."""

import pytest

from quorumlog.chaos.mutants.voters import VOTERS
from quorumlog.chaos.simulation import WORLDS, simulate
from tests.support.sizes import tries

# A seed of each mutant, and the rule that finds it.
FOUND = {
    "counts_the_old_voters": (0, "commit-durable"),
    "changes_two_at_once": (0, "one-change"),
    "changes_too_soon": (12, "change-own-epoch"),
    "keeps_truncated_voters": (0, "voters-in-force"),
    "removed_leader_counts_itself": (0, "commit-durable"),
    "wiped_voter_votes": (9, "votes-as"),
    "adds_before_it_may_vote": (21, "added-votes"),
    "removed_voter_stands": (0, "stands"),
    "snapshot_without_voters": (13, "voters-in-force"),
    "counts_any_directory": (30, "commit-durable"),
    "forgets_voters_at_start": (6, "voters-in-force"),
}
LONGER = {"adds_before_it_may_vote"}  # disks are lost once each log names the voters


def test_seeds_hold() -> None:
    for seed in range(tries(20)):
        result = simulate(seed, world="voters", duration_ms=8_000)
        assert result.valid, result
        assert result.committed > 0


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_seeds_hold_with_other_numbers_of_voters(nodes: int) -> None:
    for seed in range(2):
        assert simulate(seed, world="voters", nodes=nodes, duration_ms=5_000).valid


def test_each_kind_of_fault_alone() -> None:
    for fault in WORLDS["voters"].faults:
        assert simulate(7, world="voters", duration_ms=2_500, faults=[fault.name]).valid


def test_a_leader_that_was_alone_and_a_new_node_do_not_end_without_a_leader() -> None:
    """The only voter added a node that might not vote yet, and resigned at once."""
    result = simulate(44, world="voters", duration_ms=60_000)
    assert result.valid, result


@pytest.mark.parametrize("seed", [18, 21])
def test_no_disk_is_lost_that_a_change_under_way_counts_on(seed: int) -> None:
    """A leader with a slow disk made the change after the loss: no majority was left to elect."""
    result = simulate(seed, world="voters", duration_ms=60_000)
    assert result.valid, result


def test_the_calm_lasts_until_a_slow_disk_has_the_whole_log_again() -> None:
    """A machine lost its disk near the end, and had 1,263 of 1,523 records after 30 s."""
    result = simulate(90, world="voters", duration_ms=60_000)
    assert result.valid, result
    assert result.simulated_ms > 90_000


@pytest.mark.planted
@pytest.mark.parametrize("mutant", FOUND)
def test_a_mutant_is_found(mutant: str) -> None:
    seed, rule = FOUND[mutant]
    duration_ms = 60_000 if mutant in LONGER else 10_000
    result = simulate(seed, world="voters", duration_ms=duration_ms, mutant=mutant)
    assert (result.violation or "").partition(":")[0] == rule


def test_every_mutant_has_a_seed_or_a_unit_test() -> None:
    by_unit_test = "forgets_the_directory_of_its_vote"  # `test_membership`
    assert {*FOUND, by_unit_test} == {*VOTERS}

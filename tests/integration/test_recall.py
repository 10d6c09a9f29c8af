"""The page of planted bugs tells the truth: its runs find what they say that they find."""

import json
from typing import Final

import pytest

from quorumlog.chaos.mutants import every_mutant
from quorumlog.chaos.node_simulation.mutants import MUTANTS
from tools.recall_page import cheapest, page
from tools.recall_real import REAL_OPTIONS, read_real, sound_runs
from tools.recall_runs import NODES, simulated
from tools.recall_table import PAGE, lost, read

RECALL: Final = read()
IN_A_WORLD: Final = [
    name
    for name, mutant in MUTANTS.items()
    if (run := cheapest(name, RECALL[name])) and run[0] != NODES
]


def test_the_page_says_what_was_found() -> None:
    assert PAGE.read_text() == page(RECALL)


def test_at_least_forty_are_found_in_simulation_and_twelve_on_real_processes() -> None:
    found = [name for name in MUTANTS if cheapest(name, RECALL[name])]
    assert len(found) >= 40
    assert {MUTANTS[name].of for name in found} == {
        "replication", "controller", "metadata quorum", "groups", "transactions", "storage",
    }  # fmt: skip
    on_real = read_real()
    assert (
        len([name for name in REAL_OPTIONS if name in on_real and any(on_real[name]["told_by"])])
        >= 12
    )
    assert not any(any(on_real[name]["told_by"]) for name in sound_runs() if name in on_real)
    assert {*REAL_OPTIONS} <= {*every_mutant()}


@pytest.mark.integration
@pytest.mark.parametrize("mutant", IN_A_WORLD)
def test_a_planted_bug_is_found_by_the_run_that_the_page_names(mutant: str) -> None:
    assert [*lost(RECALL, [mutant])] == []


@pytest.mark.integration
def test_a_run_that_finds_nothing_is_told() -> None:
    unlucky = json.loads(json.dumps(RECALL))
    unlucky["second_vote"]["quorum"]["seed"] = 0
    assert simulated("second_vote", "quorum", 0) == ""
    assert [*lost(unlucky, ["second_vote"])] == ["second_vote: quorum, seed 0: found nothing"]

"""The page of planted bugs shows the recorded results, and its runs find their bugs again."""

import json
from typing import Final

import pytest

from quorumlog.chaos.mutants import every_mutant
from tools import recall_table
from tools.recall_page import cheapest, page
from tools.recall_real import REAL_OPTIONS, read_real, sound_runs
from tools.recall_runs import MUTANTS, NODES, simulated, simulated_command
from tools.recall_table import PAGE, Cell, Piece, Wanted, lost, next_piece, read, unsound

RECALL: Final = read()
IN_A_WORLD: Final = [
    name
    for name, mutant in MUTANTS.items()
    if (run := cheapest(name, RECALL[name])) and run[0] != NODES
]
OF_DIFFERENT_RUNS: Final = list(
    {
        simulated_command(name, subject, noted["seed"], is_sound=True): name
        for name in IN_A_WORLD
        if (run := cheapest(name, RECALL[name]))
        for subject, noted in [run]
    }.values()
)
"""One mutant for each run that finds any."""


def test_the_page_says_what_was_found() -> None:
    assert PAGE.read_text() == page(RECALL)


def test_at_least_forty_are_found_in_simulation_and_twelve_on_real_processes() -> None:
    found = [name for name in MUTANTS if cheapest(name, RECALL[name])]
    assert len(found) >= 40
    assert {MUTANTS[name].of for name in found} == {
        "replication", "controller", "metadata quorum", "groups", "transactions", "storage",
        "security", "mirror",
    }  # fmt: skip
    on_real = read_real()
    assert (
        len([name for name in REAL_OPTIONS if name in on_real and any(on_real[name]["told_by"])])
        >= 12
    )
    assert not any(any(on_real[name]["told_by"]) for name in sound_runs() if name in on_real)
    assert {*REAL_OPTIONS} <= {*every_mutant()}


def test_a_nightly_run_goes_on_at_the_next_seed_of_a_cell_without_a_finding() -> None:
    cells: dict[str, Cell] = {"quorum": {"seed": None, "tried": 30}, NODES: {"seed": 3, "tried": 4}}
    wanted = Wanted(mutants=["minority_commits"], levels=["cores", NODES], seeds=40)
    piece = next_piece("minority_commits", cells, wanted)
    assert piece == Piece("minority_commits", "quorum", 30, 40)
    cells["quorum"]["tried"] = 40
    assert next_piece("minority_commits", cells, wanted) is None


@pytest.mark.integration
@pytest.mark.parametrize("mutant", IN_A_WORLD)
def test_a_planted_bug_is_found_by_the_run_that_the_page_names(mutant: str) -> None:
    assert [*lost(RECALL, [mutant])] == []


@pytest.mark.integration
@pytest.mark.parametrize("mutant", OF_DIFFERENT_RUNS)
def test_the_product_holds_where_a_planted_bug_is_found(mutant: str) -> None:
    assert [*unsound(RECALL, [mutant])] == []


def test_a_run_that_fails_without_the_planted_bug_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[tuple[str, str, int, bool]] = []

    def fails(mutant: str, subject: str, seed: int, *, is_sound: bool = False) -> str:
        runs.append((mutant, subject, seed, is_sound))
        return "liveness"

    monkeypatch.setattr(recall_table, "simulated", fails)
    recall = {name: {"quorum": {"seed": 4}} for name in ("second_vote", "waits_for_ever")}
    told = "quorumlog simulate quorum --seed 4 --duration 10s: liveness, without a planted bug"
    assert [*unsound(recall, [*recall])] == [told]
    assert runs == [("second_vote", "quorum", 4, True)]


@pytest.mark.integration
def test_a_run_that_finds_nothing_is_told() -> None:
    unlucky = json.loads(json.dumps(RECALL))
    unlucky["second_vote"]["quorum"]["seed"] = 0
    assert simulated("second_vote", "quorum", 0) == ""
    assert [*lost(unlucky, ["second_vote"])] == ["second_vote: quorum, seed 0: found nothing"]

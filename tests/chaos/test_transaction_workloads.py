"""Workloads with transactions: an ideal broker is valid, and every planted fault is found.

The broker is a model that knows no rule of the checkers: `transactions_in_memory`.
"""

import random
from pathlib import Path

import pytest

from quorumlog.chaos.checkers import Severity, Verdict
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.history import read_history
from tests.support.chaos.runs import checked_in_runs
from tests.support.chaos.transaction_runs import WORKLOADS, judged
from tests.support.chaos.transactions_in_memory import FAULTS
from tests.support.sizes import tries

IDEAL_SEEDS = 8
SEEDS = 4

# What one run of a fault shows, at the least, and in which workload a client can see it.
SHOWN = {
    ("txn_append", "shows_aborted"): {"G1a"},
    ("txn_append", "shows_open"): {"G1b"},
    ("txn_append", "half_committed"): {"lost-write"},
    ("txn_append", "half_aborted"): {"G1a"},
    ("txn_append", "commit_ignored"): {"lost-write"},
    ("txn_append", "abort_commits"): {"G1a"},
    ("txn_append", "late_commit"): {"G1a"},
    ("txn_append", "retry_appends_twice"): {"duplicate"},
    ("txn_append", "forgets_records"): {"lost-write", "vanished-write"},
    ("consume_transform_produce", "shows_aborted"): {"G1a"},
    ("consume_transform_produce", "shows_open"): {"G1a", "G1b"},
    ("consume_transform_produce", "half_committed"): {"lost-write"},
    ("consume_transform_produce", "commit_ignored"): {"consumed-twice", "offset-lost"},
    ("consume_transform_produce", "abort_commits"): {"unconsumed", "offset-ahead"},
    ("consume_transform_produce", "zombies_accepted"): {"consumed-twice"},
    ("consume_transform_produce", "offsets_outside"): {"unconsumed", "offset-ahead"},
    ("consume_transform_produce", "offsets_dropped"): {"consumed-twice", "offset-lost"},
    ("txn_transfer", "shows_aborted"): {"wrong-total"},
    ("txn_transfer", "half_committed"): {"wrong-total"},
    ("txn_transfer", "half_aborted"): {"wrong-total"},
    ("txn_transfer", "abort_commits"): {"wrong-total"},
    ("txn_transfer", "late_commit"): {"wrong-total"},
}
UNKNOWN = {"marker_lost"}  # nobody gets past the open transaction: no verdict, and never valid


def wrong(verdict: Verdict) -> set[str]:
    return {one.name for one in verdict.results if one.severity is not Severity.ALLOWED}


def test_every_fault_of_the_model_is_looked_for() -> None:
    assert {fault for _, fault in SHOWN} | UNKNOWN == FAULTS.keys()


@pytest.mark.parametrize("workload", WORKLOADS)
def test_an_ideal_broker_is_valid(workload: str, tmp_path: Path) -> None:
    for seed in range(tries(IDEAL_SEEDS)):
        verdict, _ = judged(tmp_path / str(seed), workload, seed)
        assert (verdict.valid, wrong(verdict)) == (True, set()), (seed, verdict.as_json())


def test_a_run_has_all_that_makes_transactions_hard(tmp_path: Path) -> None:
    said, micros = set[str](), set[str]()
    for workload in WORKLOADS:
        judged(tmp_path / workload, workload, seed=1)
        rows = read_history(tmp_path / workload).to_pylist()
        said |= {row["error"].partition(":")[0] for row in rows}
        micros |= {micro["f"] for row in rows if row["f"] == "txn" for micro in row["micro"]}
    assert said >= {"ABORTED", "CRASHED", "PRODUCER_FENCED", "REQUEST_TIMED_OUT"}
    assert micros == {"send", "poll", "offsets", "commit"}


@pytest.mark.parametrize(("workload", "fault"), SHOWN)
def test_a_fault_that_clients_can_see_is_found(workload: str, fault: str, tmp_path: Path) -> None:
    found: set[str] = set()
    for seed in range(SEEDS):
        verdict, broker = judged(tmp_path / str(seed), workload, seed, fault)
        assert verdict.valid is not True or workload == "txn_transfer" or not broker.hits
        found |= wrong(verdict) if verdict.valid is False else set()
        if found >= SHOWN[workload, fault]:
            return
    assert found >= SHOWN[workload, fault]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_marker_that_never_comes_leaves_no_valid_run(workload: str, tmp_path: Path) -> None:
    for seed in range(20):
        verdict, broker = judged(tmp_path / str(seed), workload, seed, "marker_lost")
        if broker.hits:
            assert verdict.valid == "unknown"
            return
    pytest.fail("no marker was lost")


@pytest.mark.parametrize("fault", ["", "half_committed", "offsets_outside", "zombies_accepted"])
def test_a_history_may_be_cut_anywhere(fault: str, tmp_path: Path) -> None:
    verdict, _ = judged(tmp_path, "consume_transform_produce", 2, fault)
    table = read_history(tmp_path)
    for seed in range(tries(8)):
        in_runs = checked_in_runs(table, CHECKER, random.Random(seed))
        told, whole = in_runs.as_json(), verdict.as_json()
        assert {**told, "seconds": 0} == {**whole, "seconds": 0}

"""Transactions: workloads with an ideal broker and with each fault, and rules of their histories.

The broker is a model that knows no rule of the checkers: `transactions_in_memory`.
"""

import inspect
import json
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from quorumlog.chaos.checkers import Severity, Verdict, check_history
from quorumlog.chaos.checkers.checker import facts_of
from quorumlog.chaos.checkers.kafka_log import CHECKER
from quorumlog.chaos.history import HistoryError, Message, read_history
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.workloads.consume_transform_produce import workers_of
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.cli.chaos_commands import run_command
from tests.support.chaos.hand_made_histories import STEP_NS, History, rows_of
from tests.support.chaos.joined_histories import same
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
    ("txn_append", "alters_records"): {"altered-record"},
    ("txn_append", "forgets_records"): {"lost-write", "vanished-write"},
    ("consume_transform_produce", "shows_aborted"): {"G1a"},
    ("consume_transform_produce", "alters_records"): {"altered-record"},
    ("consume_transform_produce", "shows_open"): {"G1a", "G1b"},
    ("consume_transform_produce", "half_committed"): {"lost-write"},
    ("consume_transform_produce", "commit_ignored"): {"consumed-twice", "offset-lost"},
    ("consume_transform_produce", "abort_commits"): {"unconsumed", "offset-ahead"},
    ("consume_transform_produce", "zombies_accepted"): {"consumed-twice"},
    ("consume_transform_produce", "offsets_outside"): {"unconsumed", "offset-ahead"},
    ("consume_transform_produce", "offsets_dropped"): {"consumed-twice", "offset-lost"},
    ("consume_transform_produce", "last_offset_dropped"): {"consumed-twice", "offset-lost"},
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


@pytest.mark.parametrize("inputs", range(2, 8))
def test_a_worker_has_several_inputs_by_default(inputs: int) -> None:
    """So a transaction commits offsets of several partitions, where there are several."""
    workers = find_workload("consume_transform_produce").options().workers
    lanes = workers_of(workers, inputs)
    assert max(len(range(inputs)[lane :: len(lanes)]) for lane in lanes) > 1
    assert len(lanes) > 1 or inputs == 2


def test_a_run_has_more_partitions_than_nodes_by_default() -> None:
    """So a leader, its sessions, and a member of a group have two."""
    settings = RunSettings(out=Path("runs"))
    assert settings.partitions > len(settings.shape.roles)
    assert settings.partitions > find_workload("group_consume").options().consumers
    assert inspect.signature(run_command).parameters["partitions"].default == settings.partitions


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


Micros = list[list[Any]]


def told(tmp_path: Path, *operations: tuple[int, str, Micros, Micros]) -> Any:
    """Return the table of (process, type, what was meant, what was told), one after the other."""
    lines = []
    for place, (process, type_, meant, known) in enumerate(operations):
        for at, (phase, value) in enumerate((("invoke", meant), (type_, known))):
            index = 2 * place + at
            row = {"index": index, "time": index, "process": process, "type": phase, "f": "txn"}
            lines.append(json.dumps({**row, "value": value}))
    file = tmp_path / "history.json"
    file.write_text("\n".join(lines))
    return read_history(file)


def names(verdict: Verdict) -> set[str]:
    return {result.name for result in verdict.results}


def sent(key: str, offset: int, value: int) -> list[Any]:
    return ["send", key, [offset, value]]


def sends(key: str, value: int) -> list[Any]:
    return ["send", key, value]


def polled(**keys: Sequence[tuple[int, int]]) -> list[Any]:
    return ["poll", {key: [list(pair) for pair in pairs] for key, pairs in keys.items()}]


POLL = ["poll"]


def test_transactions_that_read_what_was_committed_are_valid(tmp_path: Path) -> None:
    verdict = check_history(
        told(
            tmp_path,
            (0, "ok", [sends("x", 1), POLL], [sent("x", 0, 1), polled(y=[])]),
            (1, "ok", [POLL, sends("y", 2)], [polled(x=[(0, 1)]), sent("y", 0, 2)]),
            (2, "ok", [POLL, sends("x", 3)], [polled(y=[(0, 2)]), sent("x", 2, 3)]),
            (1, "ok", [POLL], [polled(x=[(2, 3)])]),
        )
    )
    assert (verdict.valid, verdict.results) == (True, [])


CIRCLE = (
    (0, "ok", [sends("x", 1), POLL], [sent("x", 0, 1), polled(z=[(0, 3)])]),
    (1, "ok", [sends("y", 2), POLL], [sent("y", 0, 2), polled(x=[(0, 1)])]),
    (2, "ok", [sends("z", 3), POLL], [sent("z", 0, 3), polled(y=[(0, 2)])]),
)


def test_a_circle_over_three_keys_is_found_however_the_keys_are_cut(tmp_path: Path) -> None:
    table = told(tmp_path, *CIRCLE)
    whole = check_history(table)
    [circle] = [result for result in whole.results if result.name == "G1c"]
    assert [one["index"] for one in circle.witnesses[0]["ops"]] == [0, 2, 4]
    entries, facts = CHECKER.explode(table), facts_of(table.schema.metadata)
    keys = entries.column("key").unique().to_pylist()
    parts = [CHECKER.check(entries.filter(pc.field("key") == key), facts) for key in keys]
    moved = [pickle.loads(pickle.dumps(part)) for part in parts]
    for cut in (moved, moved[::-1]):
        assert CHECKER.conclude(cut, [], facts).as_json() == whole.as_json()


def test_a_transaction_of_which_anything_was_polled_is_whole(tmp_path: Path) -> None:
    crashed = (0, "info", [sends("x", 1), sends("y", 2)], [sent("x", 0, 1), sent("y", 0, 2)])
    later = (1, "ok", [sends("y", 3)], [sent("y", 1, 3)])
    past = (2, "ok", [POLL], [polled(y=[(1, 3)])])
    proof = (3, "ok", [POLL], [polled(x=[(0, 1)])])
    lost = check_history(told(tmp_path, crashed, later, past, proof))
    assert (lost.valid, names(lost)) == (False, {"lost-write"})
    assert lost.results[0].witnesses[0]["ops"][0]["value"] == 2
    assert names(check_history(told(tmp_path, crashed, later, past))) == set()
    below = (2, "ok", [POLL], [polled(y=[])])
    assert "lost-write" not in names(check_history(told(tmp_path, crashed, later, below, proof)))


@pytest.mark.parametrize(("answered_ms", "is_early"), [(4, True), (5, False), (6, False)])
def test_an_offset_is_shown_after_its_commit_was_requested(
    answered_ms: int, is_early: bool
) -> None:
    """A pending offset is not the group's (KIP-98, KIP-447)."""
    offsets = Message("x-0", 3, 0, f="offsets")
    commit = Message("", -1, 5 * STEP_NS, f="commit")
    polled = [Message("x-0", at, at, f="poll") for at in range(3)]
    history = History().sent(0, 1, 2)
    start = history.now_ns
    at = (start, start + 9 * STEP_NS)
    history.op(5, "assign", [("x-0", -1, 0)], at=(start - 2, start - 1))
    history.txn(5, *polled, offsets, commit._replace(value=start + commit.value), at=at)
    answered = start + answered_ms * STEP_NS
    history.op(9, "committed", [("x-0", 3, 0)], at=(start + STEP_NS, answered))
    table = history.poll((0, 0), (1, 1), (2, 2)).final((0, 0), (1, 1), (2, 2), end=3).table()
    verdict = check_history(table)
    assert names(verdict) == ({"offset-ahead"} if is_early else set()), verdict.as_json()
    for seed in range(4):
        same(checked_in_runs(table, CHECKER, random.Random(seed)), verdict)
    if is_early:
        [witness] = verdict.results[0].witnesses
        assert witness["note"] == "the transaction with this offset had not requested its commit"
        assert [op["f"] for op in witness["ops"]] == ["committed", "txn"]


def in_doubt(
    process: int, key: str, value: int, **read: Sequence[tuple[int, int]]
) -> tuple[int, str, Micros, Micros]:
    """Return a transaction of unknown outcome that sent a value at offset 0, and polled `read`."""
    return process, "info", [sends(key, value), POLL], [sends(key, value), polled(**read)]


UNSETTLED: dict[str, tuple[list[tuple[int, str, Micros, Micros]], set[str]]] = {
    "each read what the other had not committed": (
        [
            (0, "ok", [sends("x", 1), POLL], [sent("x", 0, 1), polled(y=[(0, 2)])]),
            in_doubt(1, "y", 2, x=[(0, 1)]),
        ],
        {"G1c"},
    ),
    "a circle of two that are known by a third": (
        [
            in_doubt(0, "x", 1, y=[(0, 2)]),
            in_doubt(1, "y", 2, x=[(0, 1)]),
            (2, "ok", [POLL], [polled(x=[(0, 1)])]),
        ],
        {"G1c"},
    ),
    "a circle of two whose records nobody else polled": (
        [in_doubt(0, "x", 1, y=[(0, 2)]), in_doubt(1, "y", 2, x=[(0, 1)])],
        set(),
    ),
    "it polled an aborted record": (
        [
            (0, "fail", [sends("x", 1), POLL], [sends("x", 1), POLL]),
            in_doubt(1, "y", 2, x=[(0, 1)]),
            (2, "ok", [POLL], [polled(y=[(0, 2)])]),
        ],
        {"G1a"},
    ),
    "it polled its own record": (
        [in_doubt(1, "y", 2, y=[(0, 2)]), (2, "ok", [POLL], [polled(y=[(0, 2)])])],
        {"precommitted-read"},
    ),
    "it polled its own record, and nobody else did": ([in_doubt(1, "y", 2, y=[(0, 2)])], set()),
}


@pytest.mark.parametrize("name", UNSETTLED)
def test_polls_of_a_transaction_that_is_known_to_be_committed_prove(
    name: str, tmp_path: Path
) -> None:
    operations, anomalies = UNSETTLED[name]
    table = told(tmp_path, *operations)
    verdict = check_history(table)
    assert wrong(verdict) & {"G1a", "G1c", "precommitted-read"} == anomalies, verdict.as_json()
    assert verdict.valid is False or not anomalies
    for seed in range(4):
        same(checked_in_runs(table, CHECKER, random.Random(seed)), verdict)


def test_what_an_aborted_transaction_sent_is_never_polled(tmp_path: Path) -> None:
    aborted = (0, "fail", [sends("x", 1), POLL], [sends("x", 1), polled(y=[])])
    assert "G1a" in names(
        check_history(told(tmp_path, aborted, (1, "ok", [POLL], [polled(x=[(0, 1)])])))
    )


def test_an_aborted_transaction_may_have_polled_what_comes_before(tmp_path: Path) -> None:
    wrote = (0, "ok", [sends("x", 1)], [sent("x", 0, 1)])
    again = (0, "ok", [sends("x", 2)], [sent("x", 1, 2)])
    first = (1, "ok", [POLL, sends("y", 7)], [polled(x=[(0, 1)]), sent("y", 0, 7)])
    aborted = (1, "fail", [POLL, sends("y", 8)], [polled(x=[(1, 2)]), sends("y", 8)])
    back = (1, "ok", [POLL], [polled(x=[(0, 1)])])
    verdict = check_history(told(tmp_path, wrote, again, first, aborted, back))
    assert names(verdict) == {"unseen"}


def test_what_is_no_part_of_a_transaction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="micro-operation"):
        told(tmp_path, (0, "ok", [["append", "x", 1], POLL], [["append", "x", 1], POLL]))
    rows = rows_of(History().op(7, "txn").ops)
    ours = [replace(row, messages=(Message("x", 0, 1, f="append"),)) for row in rows]
    with pytest.raises(HistoryError, match="'append' is no micro-operation of the model"):
        check_history(table_of(ours))

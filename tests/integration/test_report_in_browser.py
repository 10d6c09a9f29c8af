"""The report of a run in headless Chromium: what is drawn is there to see, whatever its size."""

import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.history_checks import write_history
from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.report import write_report
from quorumlog.chaos.run.cluster_states import STATES_FILE
from quorumlog.chaos.run.run_directory import VERDICT_FILE
from quorumlog.chaos.store.runs import find_run, find_runs
from quorumlog.chaos.store.server import list_page, run_page
from tests.support.chaos.browser import CHROMIUM, look_at, outside, overlapping
from tests.support.chaos.hand_made_histories import History

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
S = 1_000_000_000


def one(leader: int, epoch: int, isr: list[int]) -> dict[str, object]:
    return {"leader": leader, "epoch": epoch, "isr": isr}


FAULTS = [  # (starts at, lasts, fault, role, its steps with what ends them)
    (3, 2, "kill", "partition-leader", {"kill": "start"}),
    (4, 3, "partition_one", "metadata-leader; 2->1 1->2", {"partition_one": "stop-partition_one"}),
    (4, 1, "pause_kill", "any, as no node was isr-follower", {"pause": "resume", "kill": "start"}),
    (37, 2, "kill", "isr-follower", {"kill": "start"}),
    (38, 1, "reply_lost", "any", {"reply_lost": "stop-reply_lost"}),
]
STATES: list[dict[str, object]] = [
    {"time_ns": 0, "controller": 1, "partitions": {"x-0": one(1, 0, [1, 2, 3])}},
    {"time_ns": 5 * S, "controller": 2, "partitions": {"x-0": one(2, 1, [2, 3])}},
    {"time_ns": 9 * S, "error": "no broker answered"},
    {"time_ns": 12 * S, "controller": 2, "partitions": {"x-0": one(2, 1, [1, 2, 3])}},
]


def put_bad_run(directory: Path) -> Verdict:
    """Write a run of 40 s with faults that overlap, a producer that stalls, and a lost record."""
    rng, history = random.Random(1), History()
    for n in range(2000):
        at_ns = n * S // 50
        history.send(n, n, process=n % 4, at=(at_ns, at_ns + rng.randrange(1, 9) * S // 1000))
        history.poll((n, n), process=7, at=(at_ns + S // 100, at_ns + S // 60))
    history.send(2000, 2000, process=5, at=(10 * S, 17 * S))
    for number, (start_s, length_s, fault, role, steps) in enumerate(FAULTS, start=1):
        for node, (step, end) in enumerate(steps.items(), start=1):
            history.now_ns = start_s * S + node
            history.nemesis(step, str(node), details=f"#{number} {fault}: {role}")
            history.now_ns = (start_s + length_s) * S + node
            history.nemesis(end, str(node), details=f"#{number} {fault}")
    history.now_ns = 41 * S
    history.final(*((n, n) for n in range(1999)), end=2001)
    put_files(directory)
    pq.write_table(history.table(), directory / "history.parquet")
    return history.verdict()


def put_files(directory: Path) -> None:
    lines = "".join(json.dumps(state) + "\n" for state in STATES)
    (directory / STATES_FILE).write_text(lines)
    (directory / "meta.json").write_text(json.dumps({"workload": "append_read", "seed": 7}))


def test_a_bad_run_is_drawn_and_readable(tmp_path: Path) -> None:
    verdict = put_bad_run(tmp_path)
    page = write_report(tmp_path, verdict, tmp_path / "report.html").read_text()
    seen = look_at(page, tmp_path, profile=tmp_path / "profile")
    assert not seen.console
    assert not seen.scrolls
    names = [chart["name"] for chart in seen.charts]
    assert names == [
        "Offsets of x-0 over time",
        "Faults over time",
        "Leaders and in-sync replicas over time",
        "Latency of sends over time",
        "Rates over time",
        "Lag of readers over time",
        "Acknowledged records not read yet",
        "Operations of each process over time",
    ]
    for chart in seen.charts:
        assert all(mark["shows"] for mark in chart["marks"]), chart["name"]
        assert not outside(chart), chart["name"]
        assert not overlapping(chart["texts"]), chart["name"]


def test_many_operations_are_a_page_that_can_be_read(tmp_path: Path) -> None:
    write_history(tmp_path / "history.parquet", 200_000, 3)
    put_files(tmp_path)
    verdict = History().sent(1).final((0, 1), end=1).verdict()  # the page is what is looked at
    page = write_report(tmp_path, verdict, tmp_path / "report.html")
    assert page.stat().st_size < 500_000
    seen = look_at(page.read_text(), tmp_path, profile=tmp_path / "profile")
    assert not seen.console
    assert not seen.scrolls
    assert len(seen.charts) == 6
    for chart in seen.charts:
        assert not outside(chart), chart["name"]
        assert not overlapping(chart["texts"]), chart["name"]


def test_the_pages_of_the_store_are_drawn(tmp_path: Path) -> None:
    run = tmp_path / "store" / "run"
    run.mkdir(parents=True)
    verdict = put_bad_run(run)
    (run / VERDICT_FILE).write_text(json.dumps(verdict.as_json()))
    runs = find_runs(tmp_path / "store")
    found = find_run(tmp_path / "store", "run")
    assert found is not None
    for page in (list_page(runs, total=1, store="store"), run_page(found)):
        seen = look_at(page, tmp_path, profile=tmp_path / "profile")
        assert not seen.console
        assert not seen.scrolls

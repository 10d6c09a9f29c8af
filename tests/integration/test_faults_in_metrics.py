"""The table of docs/metrics.md: each fault of real processes moves the metrics of its row."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.faults.registry import STEP_FAULTS
from quorumlog.chaos.history import read_history
from quorumlog.chaos.run import node_metrics
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action, Schedule, Target
from quorumlog.chaos.shim import shim as shims

pytestmark = pytest.mark.integration
PAGE = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
SECTION = PAGE.partition("## Which metric shows a fault")[2].partition("\n## ")[0]
SAMPLE = re.compile(r"^(\w+)(\{.*\})? (\S+)$", re.MULTILINE)
EVERY_S = 0.4
LASTS_S, APART_S = (6.0, 12.0, 24.0), 5.0  # of a fault: longer than sessions; and calm behind it
UP, SILENT_S = "up", 1.5  # Prometheus' own metric: the node answers scrapes
AFTER_S = 2.0  # a metric may move so long after the end of a fault
ON_NODES = (
    *("kill", "pause", "restart", "grow", "delete_records", "quota", "change_voters"),
    *("admin_churn", "kill_all", "wipe", "disk_error"),
)
ON_LINKS = (
    *("partition_one", "isolate_role", "delay", "slow_link", "reset", "refuse", "drop_request"),
    *("delay_request", "reply_lost"),
)
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "slow_link": {"bytes_per_s": 5_000},
    "delay_request": {"api": "Fetch", "us": 300_000},
    "disk_error": {"calls": "writes"},  # of reads, a cached log needs none
}
TARGETS: Mapping[str, Target] = {"kill_all": "all", "admin_churn": "all"}

SLOW = "quorumlog_request_seconds"
PRODUCES, QUICK_PRODUCES = ('{request="Produce",le="+Inf"}', '{request="Produce",le="0.131072"}')

Numbers = Mapping[str, float]
"""The sum of each family's samples on one node."""


@dataclass(slots=True)
class Scrapes:
    """The scrapes of a run, as they came: (seconds, node, numbers)."""

    rows: list[tuple[float, int, Numbers]] = field(default_factory=list)

    def add(self, text: str, *, time_ns: int, node: int) -> None:
        found: defaultdict[str, float] = defaultdict(float)
        for name, labels, value in SAMPLE.findall(text):
            found[name] += float(value)
            if labels in {PRODUCES, QUICK_PRODUCES}:  # the difference: slow ones
                found[SLOW] += float(value) * (-1 if labels == QUICK_PRODUCES else 1)
        self.rows.append((time_ns / 1e9, node, dict(found)))

    def within(self, begin_s: float, end_s: float, node: int) -> list[Numbers]:
        return [row for at_s, of, row in self.rows if of == node and begin_s <= at_s <= end_s]


def moved(scrapes: Scrapes, times: tuple[float, float], name: str) -> set[str]:
    """Return the directions in which a family moves on some node: up, down.

    A counter moves up if it grows twice as fast as before.
    """
    begin_s, end_s = times[0], times[1] + AFTER_S
    found = set[str]()
    for node in {of for _, of, _ in scrapes.rows}:
        before = scrapes.within(begin_s - APART_S / 2, begin_s, node)
        during = scrapes.within(begin_s, end_s, node)
        if name == UP:
            at_s = [s for s, of, _ in scrapes.rows if of == node and begin_s - 1 <= s <= end_s]
            found |= {"down"} if any(b - a > SILENT_S for a, b in pairwise(at_s)) else set()
        if not before or not during:
            continue
        if name == SLOW or name.endswith("_total"):
            rates = [
                growth(rows, name) / seconds
                for rows, seconds in (
                    (before, APART_S / 2),
                    (before[-1:] + during, end_s - begin_s),
                )
            ]
            found |= {"up"} if rates[1] > 2 * rates[0] else set()
        else:
            values = [row.get(name, 0.0) for row in before]
            after = [row.get(name, 0.0) for row in during]
            found |= {"up"} if max(after) > max(values) else set()
            found |= {"down"} if min(after) < min(values) else set()
    return found


def growth(rows: list[Numbers], name: str) -> float:
    """Return the growth of a counter, which begins again with its process."""
    values = [row.get(name, 0.0) for row in rows]
    return sum(max(after - before, 0.0) for before, after in pairwise(values))


def carried_out(
    out: Path, names: Sequence[str], lasts_s: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[Scrapes, dict[str, tuple[float, float]]]:
    """Carry out these faults, one after the other; return the scrapes, and the time of each."""
    scrapes, parse = Scrapes(), node_metrics.parse

    def kept(text: str, *, time_ns: int, node: int) -> node_metrics.NodeMetrics:
        scrapes.add(text, time_ns=time_ns, node=node)
        return parse(text, time_ns=time_ns, node=node)

    monkeypatch.setattr(node_metrics, "parse", kept)
    monkeypatch.setattr(node_metrics, "EVERY_S", EVERY_S)
    step_us = int((lasts_s + APART_S) * 1e6)
    actions = tuple(
        Action(
            t_us=2_000_000 + number * step_us,
            duration_us=int(lasts_s * 1e6),
            fault=STEP_FAULTS[name](**PARAMETERS.get(name, {})),
            target=TARGETS.get(name, STEP_FAULTS[name].targets[0]),
        )
        for number, name in enumerate(names)
    )
    duration_us = actions[-1].t_us + step_us
    schedule = Schedule(seed=1, duration_us=duration_us, actions=actions)
    run(
        RunSettings(
            out=out, schedule=schedule, seed=1, duration_s=duration_us / 1e6,
            options={"rate": 100.0},
        ),
        lambda *_: None,
    )  # fmt: skip
    times: dict[str, tuple[float, float]] = {}
    for row in read_history(out).to_pylist():
        match = re.match(r"#\d+ (\w+)", row["details"] or "")
        if row["process"] == -1 and match is not None:
            at_s = row["invoked_ns"] / 1e9
            begin_s, end_s = times.get(match[1], (at_s, at_s))
            times[match[1]] = min(begin_s, at_s), max(end_s, at_s)
    return scrapes, times


def table() -> dict[str, list[tuple[str, str]]]:
    """Return the rows of the page: by fault, the directions and names of its metrics."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for line in SECTION.splitlines():
        if line.startswith("| `"):
            faults, metrics = line.strip("| ").split(" | ", 1)
            found = re.findall(r"([↑↓]) `(\w+)`", metrics)
            named = [({"↑": "up", "↓": "down"}[arrow], name) for arrow, name in found]
            assert named, line
            rows.update(dict.fromkeys(re.findall(r"`(\w+)`", faults), named))
    return rows


def test_the_page_has_each_fault_of_real_processes() -> None:
    assert table().keys() == {*ON_NODES, *ON_LINKS}
    assert STEP_FAULTS.keys() <= {*re.findall(r"`(\w+)`", SECTION)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(
            ON_NODES,
            id="on nodes",
            marks=pytest.mark.skipif(bool(shims.why_not()), reason=shims.why_not()),
        ),
        pytest.param(ON_LINKS, id="on links"),
    ],
)
def test_each_fault_moves_the_metrics_of_its_row(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a session ends later than the fault: an unmoved metric gets more time."""
    left: Sequence[str] = names
    unmoved: list[tuple[str, str, str]] = []
    for lasts_s in LASTS_S:
        with monkeypatch.context() as patch:
            scrapes, times = carried_out(tmp_path / f"{lasts_s}", left, lasts_s, patch)
        assert times.keys() == {*left}
        unmoved = [
            (fault, direction, name)
            for fault in left
            for direction, name in table()[fault]
            if direction not in moved(scrapes, times[fault], name)
        ]
        left = sorted({fault for fault, *_ in unmoved})
        if not left:
            break
    assert unmoved == []

"""Claims by hand-made results: each holds, does not, or is not shown; safety decides."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from quorumlog.bench.claims import CLAIMS_OF, SAFETY, TEXTS, KillRun, Results, judge
from quorumlog.bench.documents import document, false_safety_claims, markdown
from quorumlog.bench.histogram import Histogram
from quorumlog.bench.load import Acks, Kept, LatencyResult, Mode, Moment, ProduceResult
from quorumlog.bench.page import page
from quorumlog.bench.running import Plan, Run
from quorumlog.bench.scenarios import KILL_CASES, SCENARIOS, Cell, KillCase, cells_of, runs_of

SENT = 1_000
RETRIED, STARTED = KILL_CASES[1], KILL_CASES[2]
IDEMPOTENT = KILL_CASES[3]


def cell(acks: Acks = "all", replicas: int = 1, min_isr: int = 1, partitions: int = 12) -> Cell:
    return Cell(partitions=partitions, replicas=replicas, min_isr=min_isr, acks=acks)


def at_rates(*rates: float, lost: int = 0) -> list[ProduceResult]:
    return [
        ProduceResult(
            began_s=0, seconds=SENT / rate, sent=SENT, acknowledged=SENT, size=8, stored=SENT - lost
        )
        for rate in rates
    ]


def rated(
    rates: Mapping[Cell, Sequence[float]], mode: Mode = "pipelined", lost: int = 0
) -> tuple[Results, list[Cell]]:
    results = Results()
    for one, values in rates.items():
        results.throughput[one, mode] = at_rates(*values, lost=lost)
    return results, list(rates)


def holds(claim: str, scenario: int, results: Results, cells: Sequence[Cell] = ()) -> bool | None:
    found = judge(results, scenario, cells)
    assert set(found) == set(CLAIMS_OF[scenario])
    assert found[claim].evidence
    return found[claim].holds


@pytest.mark.parametrize(
    ("zero", "one", "everyone", "expected"),
    [
        ((300, 310, 320), (200, 210, 220), (100, 110, 120), True),
        ((300, 310, 320), (100, 110, 120), (200, 210, 220), False),
        ((300, 310, 320), (100, 150, 220), (140, 160, 220), None),
        ((300, 310, 320), (140, 160, 220), (100, 150, 220), None),
    ],
)
def test_acks_are_ordered(
    zero: Sequence[float], one: Sequence[float], everyone: Sequence[float], expected: bool | None
) -> None:
    results, cells = rated({cell(0): zero, cell(1): one, cell("all"): everyone})
    assert holds("C1", 1, results, cells) is expected


def test_replicas_cost_with_all_acks_only() -> None:
    rates: dict[Cell, Sequence[float]] = {
        cell("all", 1): (200, 210, 220),
        cell("all", 4, 1): (100, 110, 120),
        cell(1, 1): (200, 210, 220),
        cell(1, 4): (190, 200, 210),
    }
    assert holds("C2", 1, *rated(rates)) is True
    assert holds("C2", 1, *rated({**rates, cell(1, 4): (90, 91, 92)})) is False
    assert holds("C2", 1, *rated({**rates, cell("all", 4, 1): (300, 310, 320)})) is False


def test_min_isr_is_free_if_the_rates_are_near() -> None:
    rates: dict[Cell, Sequence[float]] = {
        cell("all", 4, 1): (100, 110, 120),
        cell("all", 4, 4): (125, 126, 127),
    }
    assert holds("C3", 2, *rated(rates)) is True
    assert holds("C3", 2, *rated({**rates, cell("all", 4, 4): (50, 51, 52)})) is False
    assert holds("C3", 2, *rated({cell("all", 4, 1): (100,)})) is None


@pytest.mark.parametrize(
    ("medians", "expected"), [((100, 300, 200), True), ((100, 200, 300), False)]
)
def test_partitions_help_then_hurt(medians: Sequence[float], expected: bool) -> None:
    rates = {
        cell("all", 2, 2, count): (median, median + 1, median + 2)
        for count, median in zip((1, 8, 48), medians, strict=True)
    }
    assert holds("C4", 4, *rated(rates)) is expected


@pytest.mark.parametrize("fewest", [(100, 310, 320), (100, 290, 320)])
def test_a_best_number_of_partitions_within_the_spread_shows_nothing(
    fewest: Sequence[float],
) -> None:
    rates: dict[Cell, Sequence[float]] = {
        cell("all", 2, 2, 1): fewest,
        cell("all", 2, 2, 8): (200, 300, 400),
        cell("all", 2, 2, 48): (50, 60, 70),
    }
    assert holds("C4", 4, *rated(rates)) is None


def test_a_log_with_fewer_records_than_were_acknowledged_is_a_loss() -> None:
    rates: dict[Cell, Sequence[float]] = {cell("all", 2): (100, 110, 120)}
    assert holds("C7", 1, *rated(rates)) is True
    assert holds("C7", 1, *rated(rates, lost=1)) is False
    unacknowledged: dict[Cell, Sequence[float]] = {cell(0, 2): (100,)}  # acks=0 may lose
    assert holds("C7", 1, *rated(unacknowledged, lost=1)) is None


def moments(*slices: tuple[float, int]) -> list[Moment]:
    return [
        Moment(at_s=at_s, acknowledged=count, attempts={"NETWORK_EXCEPTION": 1})
        for at_s, count in slices
    ]


def killed(
    case: KillCase = RETRIED,
    *slices: tuple[float, int],
    started_s: float | None = None,
    kept: Kept | None = None,
) -> KillRun:
    acknowledged = sum(count for _, count in slices)
    produced = ProduceResult(
        began_s=0,
        seconds=max(at_s for at_s, _ in slices),
        sent=acknowledged,
        acknowledged=acknowledged,
        size=8,
        attempts={"NETWORK_EXCEPTION": 3},
        moments=moments(*slices),
    )
    sound = Kept(stored=acknowledged, lost=0, duplicates=0, failed_stored=0)
    return KillRun(
        case=case, produced=produced, kept=kept or sound, killed_s=1.0, started_s=started_s
    )


def test_sending_continues_after_half_of_the_brokers_died() -> None:
    assert holds("C5", 5, Results(kills=[killed(RETRIED, (0.5, 10), (1.5, 10))])) is True
    assert holds("C5", 5, Results(kills=[killed(RETRIED, (0.5, 10), (0.9, 10))])) is False
    unsettled = killed(RETRIED, (0.5, 10), (1.5, 10))
    unsettled = replace(unsettled, produced=replace(unsettled.produced, sent=21))
    assert holds("C5", 5, Results(kills=[unsettled])) is False


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        (((0.5, 10), (1.1, 5), (11.5, 10)), True),
        (((0.5, 10), (9.0, 5), (11.5, 10)), False),  # acknowledged below min ISR
        (((0.5, 10), (10.9, 0)), False),  # never resumed
    ],
)
def test_sending_stops_below_min_isr_and_resumes(
    slices: Sequence[tuple[float, int]], expected: bool
) -> None:
    run = killed(STARTED, *slices, started_s=11.0)
    assert holds("C6", 5, Results(kills=[run])) is expected


def test_no_acknowledged_record_is_lost() -> None:
    lost = Kept(stored=19, lost=1, duplicates=0, failed_stored=0)
    run = killed(RETRIED, (0.5, 10), (1.5, 10), kept=lost)
    assert holds("C7", 5, Results(kills=[run])) is False


def test_duplicates_are_allowed_with_retries_but_not_with_idempotence() -> None:
    twice = Kept(stored=22, lost=0, duplicates=2, failed_stored=0)
    plain, idempotent = (
        killed(case, (0.5, 10), (1.5, 10), kept=twice) for case in (RETRIED, IDEMPOTENT)
    )
    assert holds("C8", 5, Results(kills=[plain])) is True
    assert holds("C8", 5, Results(kills=[plain, idempotent])) is False
    assert holds("C8", 5, Results(kills=[replace(plain, case=KILL_CASES[0])])) is False
    assert holds("C8", 5, Results()) is None


def latency(p99_ms: float) -> LatencyResult:
    seen = Histogram()
    for number in range(100):
        seen.add(2.0 if number < 95 else p99_ms)
    return LatencyResult(seconds=1, sent=100, failed={}, producer=seen, end_to_end=seen)


def test_the_p99_of_latencies_is_judged() -> None:
    assert holds("C9", 6, Results(latency=latency(5))) is True
    assert holds("C9", 6, Results(latency=latency(50))) is False
    assert holds("C9", 6, Results()) is None


# --- documents ---


@pytest.fixture
def whole() -> Run:
    plan = Plan(only=SCENARIOS, messages=SENT, modes=("pipelined", "one-by-one"))
    run = Run(plan=plan, load_average=(0.1, 2.0), left_out={"scenario 6": "it <needs> brokers"})
    for planned in plan.throughputs:
        found = run.results.throughput.setdefault((planned.cell, planned.mode), [])
        found += at_rates(100 + 10 * planned.run)
    for case in plan.kills:
        started_s = 5.0 if case.starts_again else None
        run.results.kills.append(killed(case, (0.5, 10), (5.5, 10), started_s=started_s))
    run.results.latency = latency(5)
    return run


def test_the_document_has_each_scenario_with_its_cells_and_claims(whole: Run) -> None:
    found: dict[str, Any] = json.loads(json.dumps(document(whole)))
    assert list(found["scenarios"]) == [str(one) for one in SCENARIOS]
    for scenario in (1, 2, 3, 4):
        rows = found["scenarios"][str(scenario)]["cells"]
        assert len(rows) == 2 * len(cells_of(scenario))
        assert {len(row["runs"]) for row in rows} == {3}
        assert rows[0]["messages_per_s"] == {"median": 110.0, "min": 100.0, "max": 120.0}
    assert found["scenarios"]["5"]["claims"] == dict.fromkeys(("C5", "C6", "C7", "C8"), True)
    assert len(found["scenarios"]["5"]["cells"]) == len(KILL_CASES)
    assert found["scenarios"]["1"]["cells"][0]["messages_per_s_2017"] == 28_511
    assert set(found["claims"]) == set(TEXTS)
    assert [name for name, one in found["claims"].items() if one["safety"]] == list(SAFETY)
    assert false_safety_claims(whole) == []


def test_one_false_claim_about_safety_is_named_everywhere(whole: Run) -> None:
    whole.results.kills[0] = replace(
        whole.results.kills[0], kept=Kept(stored=1, lost=19, duplicates=0, failed_stored=0)
    )
    assert false_safety_claims(whole) == ["C7"]
    assert "Not safe: C7" in page(whole)
    assert "| C7 | Every acknowledged record is in the log (safety) | does not hold here |" in (
        markdown(whole)
    )


def test_the_page_has_a_plot_for_each_part_and_escapes_texts(whole: Run) -> None:
    text = page(whole)
    assert text.count("<svg") == 2 * 4 + 2 * len(KILL_CASES) + 1
    assert "it &lt;needs&gt; brokers" in text
    assert "<needs>" not in text
    assert "28,511" in text


def test_cells_that_scenarios_share_are_run_once() -> None:
    cells = [planned.cell for planned in runs_of(SCENARIOS, ("pipelined",), 1)]
    assert len(cells) == len(set(cells)) < sum(len(cells_of(one)) for one in (1, 2, 3, 4))
    plans = [
        Plan(only=SCENARIOS, messages=1, modes=("pipelined",), seed=seed) for seed in (1, 1, 2)
    ]
    orders = [plan.throughputs for plan in plans]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(map(str, orders[0])) == sorted(map(str, orders[2]))

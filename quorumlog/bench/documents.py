"""The results as a JSON document and as a page of Markdown."""

import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from quorumlog import __version__
from quorumlog.bench.claims import SAFETY, TEXTS, Judged, KillRun, judge
from quorumlog.bench.load import Mode, ProduceResult
from quorumlog.bench.running import Run, cells_with
from quorumlog.bench.scenarios import (
    KILL_CASES,
    KILLS,
    LATENCY,
    LATENCY_2017,
    SCENARIOS,
    TITLES,
    Cell,
    KillCase,
    cells_of,
)

FORMAT: Final = 1
WORDS: Final = {True: "holds", False: "does not hold here", None: "not shown"}
METHOD: Final = (
    "Each cell is run on a new topic, {runs} times, in an order drawn by the seed; the median and "
    "the range are shown. A rate is the number of acknowledged records by the wall time; with "
    "acks=0 a record counts once it is written to the socket. Each run begins with a warm-up of "
    "0.5 s (the first with 2 s). Pipelined: idempotence off, linger.ms 5, batches of 16 KiB, at "
    "most 5,000 records unacknowledged, {messages:,} records of 1 KiB. One by one: each record is "
    "sent after the acknowledgement of the last; a fiftieth of the records (50 at least). Client, "
    "nodes and load share this machine: ratios matter, not rates."
)


def document(run: Run) -> dict[str, Any]:
    """Return the JSON document of a run."""
    plan = run.plan
    judged = {one: claims_of(run, one) for one in sorted(plan.only)}
    return {
        "format": FORMAT,
        "quorumlog": __version__,
        "seed": plan.seed,
        "messages": plan.messages,
        "modes": list(plan.modes),
        "driver": plan.driver,
        "own_cluster": run.is_own,
        "brokers": run.brokers,
        "machine": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "load_average": [round(one, 2) for one in run.load_average],
        },
        "seconds": round(run.seconds, 1),
        "left_out": dict(run.left_out),
        "scenarios": {
            str(scenario): {
                "title": TITLES[scenario],
                "cells": _cells(run, scenario),
                "claims": {name: one.holds for name, one in claims.items()},
                "evidence": {name: list(one.evidence) for name, one in claims.items()},
            }
            for scenario, claims in judged.items()
        },
        "claims": {
            name: {"text": TEXTS[name], "safety": name in SAFETY, "holds": holds}
            for name, holds in summary(judged).items()
        },
    }


def claims_of(run: Run, scenario: int) -> dict[str, Judged]:
    """Return the judged claims of one scenario."""
    return judge(run.results, scenario, cells_with(run.results, scenario))


def summary(judged: Mapping[int, Mapping[str, Judged]]) -> dict[str, bool | None]:
    """Return each claim over all scenarios: false if one is false, true if one is true."""
    found: dict[str, bool | None] = {}
    for name in TEXTS:
        views = [claims[name].holds for claims in judged.values() if name in claims]
        if views:
            found[name] = False if False in views else True if True in views else None
    return found


def false_safety_claims(run: Run) -> list[str]:
    """Return the names of the claims about safety that are false."""
    found = summary({one: claims_of(run, one) for one in run.plan.only})
    return [name for name in SAFETY if found.get(name) is False]


def _cells(run: Run, scenario: int) -> list[dict[str, Any]]:
    if scenario == KILLS:
        return [_kill_cell(case, runs) for case, runs in kills_by_case(run)]
    if scenario == LATENCY:
        latency = run.results.latency
        return [] if latency is None else [{**latency.as_json(), "of_2017": LATENCY_2017}]
    return [
        {
            **cell.as_json(),
            "mode": mode,
            "messages_per_s": _spread([one.rate_per_s for one in runs]),
            "messages_per_s_2017": cells_of(scenario)[cell],
            "runs": [one.as_json() for one in runs],
        }
        for cell, mode, runs in measured(run, scenario)
    ]


def measured(run: Run, scenario: int) -> Iterator[tuple[Cell, Mode, Sequence[ProduceResult]]]:
    """Yield the measured cells of a scenario in the order of 2017, for each mode."""
    for mode in run.plan.modes:
        for cell in cells_of(scenario):
            if runs := run.results.throughput.get((cell, mode)):
                yield cell, mode, runs


def kills_by_case(run: Run) -> Iterator[tuple[KillCase, Sequence[KillRun]]]:
    """Yield the runs of scenario 5 by case, in the order of 2017."""
    for case in KILL_CASES:
        if runs := [one for one in run.results.kills if one.case == case]:
            yield case, runs


def _kill_cell(case: KillCase, runs: Sequence[KillRun]) -> dict[str, Any]:
    return {
        "case": case.name,
        "kills": case.kills,
        "starts_again": case.starts_again,
        "retries": case.retries,
        "idempotent": case.idempotent,
        "messages_per_s": _spread([one.produced.rate_per_s for one in runs]),
        "messages_per_s_2017": case.tps_2017,
        "found_2017": case.found_2017,
        "runs": [
            {
                **one.produced.as_json(),
                "stored": one.kept.stored,
                "lost": one.kept.lost,
                "duplicates": one.kept.duplicates,
                "failed_but_stored": one.kept.failed_stored,
                "killed": list(one.killed),
                "killed_s": round(one.killed_s, 3),
                "started_s": None if one.started_s is None else round(one.started_s, 3),
                "timeline": [
                    [moment.at_s, moment.acknowledged, moment.attempts]
                    for moment in one.produced.moments
                    if moment.acknowledged or moment.attempts
                ],
            }
            for one in runs
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(median(values), 1),
        "min": round(min(values), 1),
        "max": round(max(values), 1),
    }


# --- Markdown ---


def markdown(run: Run) -> str:
    """Return the page of a run."""
    plan = run.plan
    judged = {one: claims_of(run, one) for one in sorted(plan.only)}
    lines = ["# Six scenarios beside the figures of 2017", "", _machine(run), "", method(run), ""]
    lines += ["| claim | | here |", "|---|---|---|"]
    lines += [
        f"| {name} | {TEXTS[name]}{' (safety)' if name in SAFETY else ''} | {WORDS[holds]} |"
        for name, holds in summary(judged).items()
    ]
    for name, reason in run.left_out.items():
        lines += ["", f"Not run: {name}: {reason}."]
    for scenario in SCENARIOS:
        if scenario in judged:
            lines += ["", f"## {scenario}. {TITLES[scenario]}", "", *_table(run, scenario), ""]
            lines += [f"- {text}" for text in (errors_of(run) if scenario == KILLS else ())]
            lines += [
                f"- **{name}** {WORDS[one.holds]}: {'; '.join(one.evidence)}"
                for name, one in judged[scenario].items()
            ]
    return "\n".join(lines) + "\n"


def method(run: Run) -> str:
    """Return the method of the run in words."""
    return METHOD.format(runs=run.plan.runs, messages=run.plan.messages)


def _machine(run: Run) -> str:
    cluster = "a cluster of its own" if run.is_own else "an existing cluster"
    loads = " to ".join(f"{one:.1f}" for one in run.load_average)
    return (
        f"quorumlog {__version__}, {cluster} of {run.brokers} brokers, driver {run.plan.driver}, "
        f"seed {run.plan.seed}, {os.cpu_count()} cores, load average {loads}, {run.seconds:.0f} s."
    )


_Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def headers_and_rows(run: Run, scenario: int) -> _Table:
    """Return the table of a scenario as texts."""
    if scenario == KILLS:
        return _kill_rows(run)
    if scenario == LATENCY:
        return _latency_rows(run)
    headers = ("cell", "mode", "messages/s", "range", "2017", "read back")
    rows = []
    for cell, mode, runs in measured(run, scenario):
        rates = [one.rate_per_s for one in runs]
        published = cells_of(scenario)[cell]
        stored, sent = sum(one.stored or 0 for one in runs), sum(one.sent for one in runs)
        row = [
            cell.name,
            mode,
            f"{median(rates):,.0f}",
            f"{min(rates):,.0f} to {max(rates):,.0f}",
            "" if published is None or mode != "pipelined" else f"{published:,}",
            f"{stored / max(sent, 1):.2%}",
        ]
        rows.append(row)
    return headers, rows


def _kill_rows(run: Run) -> _Table:
    headers = (
        "case", "killed", "retries", "idempotent", "messages/s", "2017", "acknowledged", "lost",
        "failed", "of them stored", "duplicates",
    )  # fmt: skip
    rows = []
    for case, runs in kills_by_case(run):
        row = [
            case.name,
            f"{case.kills} of 4" + (", started again" if case.starts_again else ""),
            "yes" if case.retries else "no",
            "yes" if case.idempotent else "no",
            f"{median(one.produced.rate_per_s for one in runs):,.0f}",
            "" if case.tps_2017 is None else f"{case.tps_2017:,}",
            f"{sum(one.produced.acknowledged for one in runs):,}",
            f"{sum(one.kept.lost for one in runs):,}",
            f"{sum(sum(one.produced.failed.values()) for one in runs):,}",
            f"{sum(one.kept.failed_stored for one in runs):,}",
            f"{sum(one.kept.duplicates for one in runs):,}",
        ]
        rows.append(row)
    return headers, rows


def errors_of(run: Run) -> Iterator[str]:
    """Yield a line for each case of scenario 5: its failed attempts by code, here and in 2017."""
    for case, runs in kills_by_case(run):
        attempts = Counter[str]()
        for one in runs:
            attempts.update(one.produced.attempts or {})
        codes = ", ".join(f"{count:,} {code}" for code, count in sorted(attempts.items()))
        published = f"; in 2017: {case.found_2017}" if case.found_2017 else ""
        yield f"{case.name}, failed attempts: {codes or 'not reported'}{published}"


def _latency_rows(run: Run) -> _Table:
    names = ("avg_ms", "min_ms", "max_ms", "p50_ms", "p99_ms", "p99.9_ms", "p99.99_ms")
    headers = ("latency in ms", *(name.removesuffix("_ms") for name in names))
    latency = run.results.latency
    if latency is None:
        return headers, []
    here = latency.as_json()
    rows: list[Sequence[str]] = []
    for kind, words in (("producer", "producer"), ("end_to_end", "end to end")):
        rows.append((words, *(f"{here[kind][name]:.2f}" for name in names)))
        published = LATENCY_2017[kind]
        rows.append((f"{words}, 2017", *(f"{published.get(name, '')}" for name in names)))
    return headers, rows


def _table(run: Run, scenario: int) -> list[str]:
    headers, rows = headers_and_rows(run, scenario)
    lines = [headers, ["---"] * len(headers), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]

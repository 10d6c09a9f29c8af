"""The results as one HTML page, with plots as inline SVG."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from statistics import median
from typing import Final

from quorumlog.bench.claims import SAFETY, TEXTS, Judged, KillRun
from quorumlog.bench.documents import (
    WORDS,
    claims_of,
    errors_of,
    false_safety_claims,
    headers_and_rows,
    kills_by_case,
    markdown,
    measured,
    method,
    summary,
)
from quorumlog.bench.histogram import Histogram, edges_of
from quorumlog.bench.load import Mode, ProduceResult
from quorumlog.bench.running import Run
from quorumlog.bench.scenarios import KILLS, LATENCY, TITLES, Cell
from quorumlog.charts.bars import Bar, BarGroup, bar_chart
from quorumlog.charts.chart import Chart
from quorumlog.charts.page import html_page, section

_STYLE_OF: Final = {True: "valid", False: "invalid", None: "not-judged"}
_ACKS_STYLE: Final = {"0": "node2", "1": "node0", "all": "node1"}
_BINS_MAX: Final = 100
_BIN_S: Final = 0.05  # at least: a moment is sampled every 10 ms
_KIND: Final = {"producer": "node0", "end to end": "node1"}


def page(run: Run) -> str:
    """Return the page of a run."""
    judged = {one: claims_of(run, one) for one in sorted(run.plan.only)}
    sections = [_banner(run, summary(judged))]
    for scenario, claims in judged.items():
        errors = errors_of(run) if scenario == KILLS else ()
        body = _plots(run, scenario) + _table(run, scenario) + _list(map(escape, errors))
        body += _claims(claims)
        sections.append(section(f"{scenario}. {TITLES[scenario]}", body))
    sections.append(section("Method", f"<p>{escape(method(run))}</p>"))
    return html_page("Six scenarios of 2017", "".join(sections))


def _banner(run: Run, claims: dict[str, bool | None]) -> str:
    wrong = false_safety_claims(run)
    style = "invalid" if wrong else "valid"
    word = f"Not safe: {', '.join(wrong)}" if wrong else "Six scenarios beside 2017"
    rows = "".join(
        f"<tr><td>{name}</td><td>{escape(TEXTS[name])}{' (safety)' * (name in SAFETY)}</td>"
        f'<td class="state {_STYLE_OF[holds]}">{WORDS[holds]}</td></tr>'
        for name, holds in claims.items()
    )
    left_out = "".join(
        f"<li>{escape(name)}: {escape(reason)}</li>" for name, reason in run.left_out.items()
    )
    machine = markdown(run).splitlines()[2]
    return (
        f'<header class="{style}"><h1>{escape(word)}</h1><p class="run">{escape(machine)}</p>'
        f"<table>{rows}</table>{f'<p>Not run:</p><ul>{left_out}</ul>' if left_out else ''}</header>"
    )


def _claims(claims: dict[str, Judged]) -> str:
    return "".join(
        f'<h3>{name} <span class="state {_STYLE_OF[one.holds]}">{WORDS[one.holds]}</span></h3>'
        f"{_list(map(escape, one.evidence))}"
        for name, one in claims.items()
    )


def _list(items: Iterable[str]) -> str:
    """Return a list; the items are HTML."""
    shown = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{shown}</ul>" if shown else ""


def _table(run: Run, scenario: int) -> str:
    headers, rows = headers_and_rows(run, scenario)
    head = "".join(f"<th>{escape(one)}</th>" for one in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(one)}</td>' for one in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _plots(run: Run, scenario: int) -> str:
    if scenario == KILLS:
        return "".join(_timeline(runs[0]) for _, runs in kills_by_case(run))
    if scenario == LATENCY:
        return _latencies(run)
    return "".join(_throughputs(run, scenario, mode) for mode in run.plan.modes)


_Row = tuple[Cell, Sequence[ProduceResult]]


def _throughputs(run: Run, scenario: int, mode: Mode) -> str:
    """Draw the cells of one mode, in groups of replicas or of partitions."""
    rows: list[_Row] = [(cell, runs) for cell, one, runs in measured(run, scenario) if one == mode]
    if not rows:
        return ""
    by_partitions = len({cell.partitions for cell, _ in rows}) > 1
    title: Callable[[Cell], str] = _partitions if by_partitions else _replicas
    groups: dict[str, list[Bar]] = {}
    for cell, runs in sorted(rows, key=_order):
        rates = [one.rate_per_s for one in runs]
        bar = Bar(
            value=median(rates),
            low=min(rates),
            high=max(rates),
            style=_ACKS_STYLE[str(cell.acks)],
            label=f"ISR ≥ {cell.min_isr}" if cell.acks == "all" else f"acks={cell.acks}",
        )
        groups.setdefault(title(cell), []).append(bar)
    svg = bar_chart(
        [BarGroup(title=name, bars=bars) for name, bars in groups.items()],
        label=f"Messages per second, {mode}",
        y_label="messages/s",
    )
    shown = sorted({str(cell.acks) for cell, _ in rows})
    colours = _legend([(_ACKS_STYLE[acks], f"acks={acks}") for acks in shown])
    return f"<h3>{mode.capitalize()}</h3>{svg}{colours}"


def _partitions(cell: Cell) -> str:
    return f"{cell.partitions} partition{'s' * (cell.partitions > 1)}"


def _replicas(cell: Cell) -> str:
    return f"{cell.replicas} replica{'s' * (cell.replicas > 1)}"


def _order(row: _Row) -> tuple[int, int, int, int]:
    cell = row[0]
    return (
        cell.partitions,
        cell.replicas,
        2 if cell.acks == "all" else int(cell.acks),
        cell.min_isr,
    )


def _timeline(run: KillRun) -> str:
    """Draw acknowledgements per second with the time of the kill, and the failed attempts below."""
    produced = run.produced
    duration_s = max(produced.seconds, 0.1)
    acknowledged = _per_second(
        [(one.at_s, one.acknowledged) for one in produced.moments], duration_s
    )
    until_s = duration_s if run.started_s is None else run.started_s
    brokers = ", ".join(map(str, run.killed))
    bands = [(f"brokers {brokers} are dead", run.killed_s, until_s)]
    top = max((rate for _, rate in acknowledged), default=1.0)
    chart = Chart(duration_s=duration_s, y_min=0, y_max=top * 1.05, y_label="acks/s", height=190)
    chart.bands(bands)
    chart.line(acknowledged, "ok", "acknowledged")
    retries = "retries" if run.case.retries else "no retries"
    title = f"{run.case.name}: {retries}, {'' if run.case.idempotent else 'not '}idempotent"
    parts = [f"<h3>{escape(title)}</h3>", chart.svg(f"{title}: acknowledgements over time")]
    codes = sorted({code for one in produced.moments for code in one.attempts})
    if codes:
        lines = [
            _per_second(
                [(one.at_s, one.attempts.get(code, 0)) for one in produced.moments], duration_s
            )
            for code in codes
        ]
        top = max(rate for line in lines for _, rate in line)
        errors = Chart(
            duration_s=duration_s, y_min=0, y_max=top * 1.05, y_label="failed/s", height=130
        )
        errors.bands([("", run.killed_s, until_s)])
        for place, line in enumerate(lines):
            errors.line(line, f"node{(place + 2) % 6}", codes[place])
        parts.append(errors.svg(f"{title}: failed attempts over time"))
    items = [("ok", "acknowledged"), ("band", "brokers are dead")]
    items += [(f"node{(place + 2) % 6}", code) for place, code in enumerate(codes)]
    return "".join(parts) + _legend(items)


def _per_second(
    points: Sequence[tuple[float, int]], duration_s: float
) -> list[tuple[float, float]]:
    """Return (middle, count per second) of equal bins; a moment counts at its end."""
    bins = max(1, min(_BINS_MAX, int(duration_s / _BIN_S)))
    width_s = duration_s / bins
    counts = [0] * bins
    for at_s, count in points:
        counts[min(int(at_s / width_s), bins - 1)] += count
    return [((place + 0.5) * width_s, count / width_s) for place, count in enumerate(counts)]


def _latencies(run: Run) -> str:
    latency = run.results.latency
    if latency is None:
        return ""
    kinds = {"producer": latency.producer, "end to end": latency.end_to_end}
    shown = {name: one for name, one in kinds.items() if one.count}
    if not shown:
        return "<p>No record was acknowledged.</p>"
    edges = edges_of(
        min(one.min_ms for one in shown.values()), max(one.max_ms for one in shown.values())
    )
    svg = bar_chart(
        list(_ranges(shown, edges)), label="Latencies by range", y_label="share of records, %"
    )
    return svg + _legend([(_KIND[name], name) for name in shown])


def _ranges(kinds: dict[str, Histogram], edges: Sequence[float]) -> Iterator[BarGroup]:
    counts = {name: one.over(edges) for name, one in kinds.items()}
    for place, (low, high) in enumerate(pairwise(edges)):
        bars = []
        for name, one in kinds.items():
            share = 100 * counts[name][place] / one.count
            bars.append(Bar(value=share, low=share, high=share, style=_KIND[name]))
        yield BarGroup(title=f"{low:.2g} to {high:.2g} ms", bars=bars)


def _legend(items: Sequence[tuple[str, str]]) -> str:
    shown = "".join(
        f'<span><i class="{style}"></i>{escape(words)}</span>' for style, words in items
    )
    return f'<p class="legend">{shown}</p>'

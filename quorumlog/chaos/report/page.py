"""The page: every text from a history or from `meta.json` is escaped."""

import json
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any, Final

from quorumlog.chaos.checkers import CheckResult, Severity, Verdict
from quorumlog.chaos.checkers.fault_bands import NODE_ENDED
from quorumlog.chaos.network.error_responses import shown_response
from quorumlog.chaos.report.fault_plot import band_labels, fault_plot
from quorumlog.chaos.report.metrics_plot import metrics_plot
from quorumlog.chaos.report.plots import (
    lag_plot,
    latency_plot,
    offsets_plot,
    rate_plot,
    timeline_plot,
    unseen_plot,
)
from quorumlog.chaos.report.series import RunSeries
from quorumlog.chaos.report.state_plot import state_plot
from quorumlog.chaos.run.cluster_states import ClusterState
from quorumlog.chaos.run.figures import OfferedLoad, faults_text
from quorumlog.chaos.run.node_metrics import NodeMetrics
from quorumlog.charts.page import html_page, section

_WITNESSES_SHOWN: Final = 5  # per anomaly; verdict.json has the others
_BAD_KEYS_MAX: Final = 3

_BANNERS: Final[Mapping[bool | str, tuple[str, str, str]]] = {
    True: ("valid", "Valid", "Holds: {text}."),
    False: ("invalid", "Invalid", "The cluster violated a guarantee:"),
    "unknown": ("unknown", "Unknown", "The history has too little evidence for a verdict."),
}

_FIGURES: Final = (
    ("acknowledged", "records acknowledged"),
    ("indeterminate", "sends of unknown outcome"),
    ("refused", "sends that certainly failed"),
    ("polled", "records polled"),
    ("finally_polled", "of them in the final reads"),
    ("keys", "topic-partitions"),
)
_STEPS: Final = "faults"  # the figure of a verdict
_META: Final[Mapping[str, str]] = {  # of meta.json, in words; other names are shown unchanged
    "started_at": "started",
    "quorumlog": "version of quorumlog",
    "python": "version of Python",
    "workload_options": "options of the workload",
    "dense": "every offset holds a record",
    "controllers": "nodes with only the role controller",
    "duration_s": "time of faults, in seconds",
    "network": "links are cut by",
    "security": "protection of the clients",
    "bootstrap": "existing cluster (--bootstrap)",
    "control": "back end of its faults (--control)",
    "partitions": "partitions of the topic",
    "replication_factor": "replicas of a partition",
    "config": "settings of the nodes (--config)",
    "node_module": "module of the nodes",
    "driver_version": "library of the driver",
    "schedule": "schedule of the faults",
    "topic_settings": "settings of the topic",
    "seconds": "time of the run, in seconds",
    "faults_not_met": "faults not carried out, for lack of time",
    "acknowledged_in_faults": "acknowledgements among the faults",
    "replicas": "partitions whose stopped replicas were compared",
    "required_in_faults": "acknowledgements required among the faults",
}
# Shown elsewhere on the page, or the same as another.
_META_LEFT_OUT: Final = frozenset({"started_wall_ns", "load", "faults_carried_out", "fault_phase"})


def render(
    verdict: Verdict,
    series: RunSeries,
    meta: Mapping[str, Any],
    states: Sequence[ClusterState],
    metrics: Sequence[NodeMetrics] = (),
    *,
    name: str,
) -> str:
    """Return the page as text. `states` and `metrics` may be empty: the run had no watcher."""
    leaders = state_plot(states, band_labels(series), series.duration_s)
    dashboard = metrics_plot(metrics, band_labels(series), series.duration_s)
    sections = [
        _banner(verdict, OfferedLoad.from_json(meta.get("load")), name),
        section("Anomalies", _anomalies(verdict)) if verdict.results else "",
        section("Figures", _figures(verdict, series, meta) + _meta(meta)),
        *(
            section(f"Offsets of {key} over time", offsets_plot(series, key, witnesses))
            for key, witnesses in _bad_keys(verdict, series.keys_with_offsets()).items()
        ),
        section("Faults", fault_plot(series, _silent_gaps(verdict))),
        section("Leaders and in-sync replicas", leaders) if leaders else "",
        section("Metrics of the nodes", dashboard) if dashboard else "",
        section("Latency of sends", latency_plot(series)),
        section("Rates", rate_plot(series)),
        section("Lag of readers", lag_plot(series)),
        section("Acknowledged records not read yet", unseen_plot(series)),
        section("Processes", timeline_plot(series)),
    ]
    title = f"{_BANNERS[verdict.valid][1]}: {name}"
    return html_page(title, "".join(sections))


def _banner(verdict: Verdict, load: OfferedLoad | None, name: str) -> str:
    style, word, words = _BANNERS[verdict.valid]
    bad = {result.name for result in verdict.results if result.severity is Severity.INVALID}
    if bad == {NODE_ENDED}:
        words = "A node ended by itself; no violated guarantee was found."
    words = escape(words.format(text=verdict.text))
    told = [_news(result, verdict.meanings) for result in verdict.results if _is_news(result)]
    told += [f"Unknown: {reason}" for reason in verdict.unknown_because]
    told += [f"The library may be at fault: {doubt}" for doubt in verdict.library_doubts[:1]]
    reasons = "".join(f"<li>{escape(text)}</li>" for text in told)
    phase = verdict.fault_phase
    return (
        f'<header class="{style}"><p class="run">{escape(name)}</p><h1>{word}</h1><p>{words}</p>'
        f"{f'<ul>{reasons}</ul>' if reasons else ''}"
        f"{f'<p>{escape(_sentence(load.text()))}</p>' if load is not None else ''}"
        f"{f'<p>{escape(_sentence(phase.text))}</p>' if phase is not None else ''}"
        f'<p class="run">{verdict.operations:,} operations, checked in {verdict.seconds:.1f} s '
        f"({escape(verdict.engine)})</p></header>"
    )


def _silent_gaps(verdict: Verdict) -> Sequence[tuple[float, float]]:
    return () if verdict.fault_phase is None else verdict.fault_phase.gaps_s


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _is_news(result: CheckResult) -> bool:
    return result.severity is Severity.INVALID and result.explained < result.count


def _news(result: CheckResult, meanings: Mapping[str, str]) -> str:
    """Return one line: the anomaly, its count, its first time, and the faults beside it."""
    text = f"{result.count:,} x {result.name}. {meanings.get(result.name, '')}"
    ops = result.witnesses[0]["ops"] if result.witnesses else []
    if not ops:
        return text
    first = ops[0]
    faults = dict.fromkeys(fault for op in ops for fault in op.get("faults", []))
    beside = f"during {', '.join(faults)}" if faults else "while no fault was active"
    return f"{text} First: value {first['value']} at {first['invoked_ns'] / 1e9:.2f} s, {beside}."


def _figures(verdict: Verdict, series: RunSeries, meta: Mapping[str, Any]) -> str:
    figures = {name: figure for name, figure in verdict.figures.items() if name != _STEPS}
    names = dict(_FIGURES) if "acknowledged" in figures else {name: name for name in figures}
    shown = [(f"{figures.get(name, 0):,}", words) for name, words in names.items()]
    shown.append(_faults(meta.get("faults_carried_out"), verdict.figures.get(_STEPS, 0)))
    shown.append((f"{series.duration_s:.1f} s", "duration"))
    if (phase := verdict.fault_phase) is not None:
        shown.append((f"{phase.silent_percent} %", "of the faults without an acknowledgement"))
        shown.append((f"{phase.longest_s:.1f} s", "longest time without one among the faults"))
        shown.append((f"{phase.majority_percent} %", "of the faults with an untouched majority"))
    if "worst_lag_ns" in figures:
        shown.append((f"{figures['worst_lag_ns'] / 1e6:,.0f} ms", "worst reader's lag"))
    tiles = "".join(f"<div><b>{value}</b><span>{words}</span></div>" for value, words in shown)
    return f'<div class="figures">{tiles}</div>'


def _faults(carried_out: object, steps: int) -> tuple[str, str]:
    """Return a figure and its words; a history of another tool has only steps of faults."""
    if not isinstance(carried_out, int):
        return f"{steps:,}", "steps of faults"
    number, _, words = faults_text(carried_out, steps).partition(" ")
    return number, words


def _meta(meta: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(_META.get(name, name.replace('_', ' ')))}</th>"
        f"<td>{escape(_plain(value))}</td></tr>"
        for name, value in meta.items()
        if name not in _META_LEFT_OUT and value not in (None, "", [], {})
    )
    return f"<table>{rows}</table>" if rows else ""


def _plain(value: Any) -> str:
    """Return a value of meta.json as text: items of a list, `name=value` of a dict."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ", ".join(str(item) for item in value)
    if isinstance(value, dict) and not any(isinstance(one, list | dict) for one in value.values()):
        return ", ".join(f"{name}={_plain(one)}" for name, one in value.items())
    return value if isinstance(value, str) else json.dumps(value)


def _anomalies(verdict: Verdict) -> str:
    return "".join(
        _anomaly(result, verdict.meanings, is_first=place == 0)
        for place, result in enumerate(verdict.results)
    )


def _anomaly(result: CheckResult, meanings: Mapping[str, str], *, is_first: bool) -> str:
    notes = []
    if result.severity is Severity.ALLOWED:
        notes.append("allowed here: a group's rebalances may move its readers")
    if result.explained:
        notes.append(f"{result.explained_part} follow from an anomaly above")
    if len(result.witnesses) < result.count or len(result.witnesses) > _WITNESSES_SHOWN:
        notes.append("the first ones are shown")
    witnesses = "".join(_witness(witness) for witness in result.witnesses[:_WITNESSES_SHOWN])
    style = result.severity.name.lower()
    return (
        f'<details class="{style}"{" open" if is_first else ""}><summary><b>{escape(result.name)}'
        f"</b> <em>{result.count:,}</em> {escape(meanings.get(result.name, ''))}</summary>"
        f"<p>{escape('; '.join(notes))}</p>{witnesses}</details>"
    )


def _witness(witness: Mapping[str, Any]) -> str:
    title = ": ".join(part for part in (witness["key"], witness["note"]) if part)
    rows = "".join(_operation(op) for op in witness["ops"])
    if not rows:  # a node that ended: no operation proves it
        return f"<h3>{escape(title)}</h3>"
    return (
        f"<h3>{escape(title)}</h3><div class='wide'><table>"
        "<tr><th></th><th>operation</th><th>value</th><th>offset</th><th>process</th>"
        "<th>index</th><th>from</th><th>until</th><th>faults meanwhile</th></tr>"
        f"{rows}</table></div>{_responses(witness)}"
    )


def _responses(witness: Mapping[str, Any]) -> str:
    """Return the brokers' responses with errors beside a witness, and doubts about the library."""
    texts = [shown_response(response) for response in witness.get("responses", ())]
    doubts = witness.get("library_doubts", ())
    texts += [f"The library may be at fault: {doubt}" for doubt in doubts]
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def _operation(op: Mapping[str, Any]) -> str:
    end_ns, offset = op["completed_ns"], op.get("offset")
    cells = [
        op["role"],
        f"{op['f']} {op['type']}",
        op["value"],
        "" if offset is None else "unknown" if offset < 0 else offset,
        op["process"],
        op["index"],
        f"{op['invoked_ns'] / 1e9:.3f} s",
        "never" if end_ns is None else f"{end_ns / 1e9:.3f} s",
        ", ".join(op.get("faults", [])),
    ]
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"


def _bad_keys(verdict: Verdict, known: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the first keys with witnesses, worst anomalies first, and all their witnesses.

    The witnesses of nodes (without operations) and of errors (whose key is not in `known`) are left
    out.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for result in verdict.results:
        for witness in result.witnesses:
            has_offsets = all("offset" in op for op in witness["ops"])
            if (
                witness["ops"]
                and has_offsets
                and witness["key"] in known
                and (witness["key"] in found or len(found) < _BAD_KEYS_MAX)
            ):
                found.setdefault(witness["key"], []).append(witness)
    return found

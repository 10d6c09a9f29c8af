"""The plots of a report."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any, Final

import numpy as np

from quorumlog.chaos.checkers.entries import FINAL_POLL, OK, POLL, SEND, Entries, Flags, Ints
from quorumlog.chaos.history.model import OUTCOMES
from quorumlog.chaos.report.fault_plot import band_labels
from quorumlog.chaos.report.series import (
    QUANTILES,
    Floats,
    RunSeries,
    key_points,
    quantiles_over_time,
    rate_over_time,
)
from quorumlog.charts.chart import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Chart

_BINS: Final = 120
_DOTS_MAX: Final = 4000  # per plot
_LANES_MAX: Final = 40
_LANE_BINS: Final = 400
_LANE_PX: Final = 13
_READERS_MAX: Final = 6
_WAITING_S: Final = 0.5  # an operation that takes this long is shown as waiting
_Point = tuple[float, tuple[float, ...]]
_WRITES: Final = ("send", "txn")
_ONE: Final = {
    "sends": "send",
    "transactions": "transaction",
    "sends and transactions": "send or transaction",
}
_CELLS: Final = ("", "other", "idle", "poll", "send", "waiting", "info", "fail")


def legend(*items: tuple[str, str]) -> str:
    """Return a legend: (class, words) each, and the bands of the faults."""
    shown = "".join(
        f'<span><i class="{style}"></i>{escape(words)}</span>'
        for style, words in (*items, ("band", "fault"))
    )
    return f'<p class="legend">{shown}</p>'


def _chart(series: RunSeries, **options: Any) -> Chart:
    """Return a chart of the whole run, with the bands of its faults."""
    chart = Chart(duration_s=series.duration_s, **options)
    chart.bands(band_labels(series))
    return chart


def latency_plot(series: RunSeries) -> str:
    """Draw the latency of sends: a sample by outcome, and quantiles of the ok ones."""
    sends, written = np.flatnonzero(series.is_f(*_WRITES)), _written(series)
    if not len(sends):
        return "<p>No sends.</p>"
    start_s, spent_ms = series.start_s[sends], (series.end_s - series.start_s)[sends] * 1000
    spent_ms = np.maximum(spent_ms, 0.01)
    chart = _chart(
        series,
        y_min=10.0 ** np.floor(np.log10(spent_ms.min())),
        y_max=10.0 ** np.ceil(np.log10(spent_ms.max()) + 1e-9),
        log=True,
        y_label="latency, ms",
        height=280,
    )
    for code, style in enumerate(OUTCOMES):
        mine = np.flatnonzero(series.outcome[sends] == code)
        mine = mine[:: max(1, -(-len(mine) // _DOTS_MAX))]
        points = zip(start_s[mine].tolist(), spent_ms[mine].tolist(), strict=True)
        chart.dots(points, style, radius=1.2 if code == OK else 2.0)
    ok = series.outcome[sends] == OK
    found = quantiles_over_time(start_s[ok], spent_ms[ok], series.duration_s, _BINS)
    for n, quantile in enumerate(QUANTILES):
        name = f"p{quantile * 100:g}"
        for run in _without_gaps(found, series.duration_s / _BINS):
            chart.line([(seconds, cuts[n]) for seconds, cuts in run], name, name)
    dots = [(style, f"a {_ONE[written]}, {style}") for style in OUTCOMES]
    lines = [(f"p{quantile * 100:g}", f"p{quantile * 100:g} of ok") for quantile in QUANTILES]
    return chart.svg(f"Latency of {written} over time") + legend(*dots, *lines)


def _without_gaps(points: Sequence[_Point], width_s: float) -> list[list[_Point]]:
    """Split the points at each empty bin: no line crosses a gap."""
    runs: list[list[_Point]] = []
    for point in points:
        if runs and point[0] - runs[-1][-1][0] < 1.5 * width_s:
            runs[-1].append(point)
        else:
            runs.append([point])
    return runs


def _written(series: RunSeries) -> str:
    """Return the name of this history's writes, in the plural."""
    has = [bool(series.is_f(name).any()) for name in _WRITES]
    return "sends and transactions" if all(has) else "transactions" if has[1] else "sends"


def rate_plot(series: RunSeries) -> str:
    """Draw sends per second by outcome, and records polled per second."""
    sends, polls = series.is_f(*_WRITES), series.is_f("poll", "final_poll")
    lines = []
    for code, style in enumerate(OUTCOMES):
        mine = sends & (series.outcome == code)
        if mine.any():
            rate = rate_over_time(series.end_s, mine, series.duration_s, _BINS)
            lines.append((f"rate {style}", f"{_written(series)} that ended {style}", rate))
    if polls.any():
        records = np.where(series.is_f("poll"), series.records, 0)
        rate = rate_over_time(series.end_s, records, series.duration_s, _BINS)
        lines.append(("rate polled", "records polled (final reads left out)", rate))
    if not lines:
        return "<p>The history has no sends or polls.</p>"
    highest = max((value for _, _, rate in lines for _, value in rate), default=1.0)
    chart = _chart(series, y_min=0, y_max=highest * 1.05, y_label="per second")
    for style, words, rate in lines:
        chart.line(rate, style, words)
    items = [(style, words) for style, words, _ in lines]
    return chart.svg("Rates over time") + legend(*items)


def lag_plot(series: RunSeries) -> str:
    """Draw the lag of the readers that fell behind most."""
    lines = lag_lines(series, bins=_BINS, readers_max=_READERS_MAX)
    if not lines:
        return "<p>No reader read while there was load.</p>"
    highest = max((age for line in lines for _, age in line.points), default=0.0)
    chart = _chart(series, y_min=0, y_max=max(highest * 1.05, 0.1), y_label="lag, s")
    items = []
    for place, line in enumerate(lines):
        chart.line(line.points, f"node{place}", line.label)
        items.append((f"node{place}", line.label))
    words = (
        "The age of the oldest acknowledged record that a reader had not read yet; the readers "
        "that were furthest behind are shown, the final reads are left out."
    )
    return chart.svg("Lag of readers over time") + legend(*items) + f"<p>{words}</p>"


def unseen_plot(series: RunSeries) -> str:
    """Draw the number of acknowledged records not yet read."""
    if not (series.entries.kind == SEND).any():
        return "<p>The history has no sends.</p>"
    lines = unseen_lines(series, bins=_BINS)
    highest = max((count for line in lines for _, count in line.points), default=0.0)
    chart = _chart(series, y_min=0, y_max=max(highest * 1.05, 1.0), y_label="records")
    for style, line in zip(("rate polled", "rate ok"), reversed(lines), strict=True):
        chart.line(line.points, style, line.label)
    items = [("rate polled", "not read by any reader yet"), ("rate ok", "not by an ordinary one")]
    return chart.svg("Acknowledged records not read yet") + legend(*items)


def timeline_plot(series: RunSeries) -> str:
    """Draw one lane per process: when it was busy, and the worst outcome of that moment."""
    processes, counts = np.unique(series.process, return_counts=True)
    if not len(processes):
        return "<p>No operations.</p>"
    shown = np.sort(processes[np.argsort(-counts, kind="stable")[:_LANES_MAX]])
    height = TOP + BOTTOM + _LANE_PX * max(len(shown), 1)
    parts = [_lane(series, int(process), n) for n, process in enumerate(shown)]
    chart = _chart(series, y_min=0, y_max=1, height=height, y_ticks=False)
    svg = chart.svg("Operations of each process over time").removesuffix("</svg>")
    left_out = len(processes) - len(shown)
    note = f"<p>{left_out} processes with fewer operations are left out.</p>" if left_out else ""
    items = [
        ("cell send", "send"),
        ("cell poll", "poll that returned records"),
        ("cell idle", "poll that returned none"),
        ("cell waiting", f"no answer for {_WAITING_S:g} s and more"),
        ("cell other", "other"),
        ("cell info", "info"),
        ("cell fail", "fail"),
    ]
    return f"{svg}{''.join(parts)}</svg>{legend(*items)}{note}"


def _lane(series: RunSeries, process: int, lane: int) -> str:
    """Draw the runs of bins with operations of the same kind."""
    y = TOP + lane * _LANE_PX
    mine = np.flatnonzero(series.process == process)
    scale = _LANE_BINS / series.duration_s
    first = np.clip((series.start_s[mine] * scale).astype(np.int64), 0, _LANE_BINS - 1)
    last = np.clip((series.end_s[mine] * scale).astype(np.int64), 0, _LANE_BINS - 1)
    # The content of a bin: the index in _CELLS of the highest kind that touches it.
    rank = np.where(series.is_f(*_WRITES)[mine], 4, 1)
    polls = series.is_f("poll", "final_poll")[mine]
    rank = np.where(polls, np.where(series.records[mine] > 0, 3, 2), rank)
    is_slow = (series.end_s - series.start_s)[mine] >= _WAITING_S
    rank = np.where(is_slow, 5, rank)
    # A reader that requests the end before it has read up to it "fails", and reads on.
    is_news = (series.outcome[mine] != OK) & ~series.is_f("final_end")[mine]
    rank = np.where(is_news, 5 + series.outcome[mine], rank)
    level = np.zeros(_LANE_BINS, np.int64)
    for n in np.argsort(rank, kind="stable").tolist():
        level[first[n] : last[n] + 1] = rank[n]
    edges = [0, *(np.flatnonzero(np.diff(level)) + 1).tolist(), _LANE_BINS]
    width = (WIDTH - LEFT - RIGHT) / _LANE_BINS
    cells = [
        f'<rect class="cell {_CELLS[level[start]]}" x="{LEFT + start * width:.1f}" y="{y + 1}" '
        f'width="{(end - start) * width:.1f}" height="{_LANE_PX - 2}"/>'
        for start, end in pairwise(edges)
        if level[start]
    ]
    label = f'<text class="tick" x="{LEFT - 8}" y="{y + 10}" text-anchor="end">{process}</text>'
    return f"<g><title>process {process}: {len(mine)} operations</title>{label}{''.join(cells)}</g>"


def offsets_plot(series: RunSeries, key: str, witnesses: Sequence[dict[str, Any]]) -> str:
    """Draw the offsets of one key over time, and the operations of its witnesses among them."""
    ops = [op for witness in witnesses if witness["key"] == key for op in witness["ops"]]
    points = key_points(series, key, _DOTS_MAX, [op["offset"] for op in ops])
    offsets = [*points.offsets.tolist(), *(op["offset"] for op in ops if op["offset"] >= 0)]
    low, high = min(offsets, default=0), max(offsets, default=1)
    chart = _chart(
        series,
        y_min=low - (high - low) * 0.03,
        y_max=high + (high - low) * 0.03 + 0.5,
        y_label="offset",
        height=280,
    )
    kinds = np.array(points.kinds, object)
    for name, style in (("finally polled", "final"), ("polled", "poll"), ("sent", "send")):
        mine = kinds == name
        chart.dots(
            zip(points.seconds[mine].tolist(), points.offsets[mine].tolist(), strict=True), style
        )
    for op in ops:
        if op["offset"] >= 0:
            moment_ns = op["invoked_ns"] if op["completed_ns"] is None else op["completed_ns"]
            words = f"{op['role']}: value {op['value']} at offset {op['offset']}"
            chart.mark(moment_ns / 1e9, op["offset"], "fail", f"{words}, index {op['index']}")
    shown = len(points.kinds)
    note = f"<p>{shown} of {points.total} points are shown.</p>" if shown < points.total else ""
    return (
        chart.svg(f"Offsets of {key} over time")
        + legend(
            ("send", "acknowledged"),
            ("poll", "polled"),
            ("final", "polled at last"),
            ("fail", "part of a witness"),
        )
        + note
    )


_S: Final = 1e9
_NEVER_S: Final = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a plot: (seconds, value) for each bin."""

    label: str
    points: list[tuple[float, float]]


def lag_lines(series: RunSeries, *, bins: int, readers_max: int) -> list[Line]:
    """Return the lag of each ordinary reader, in seconds; the worst readers come first.

    The lag at a moment is the age of the oldest acknowledged record that the reader had not read by
    then. The lag of a reader that stops reading grows until the load ends.
    """
    polled = series.entries.take(_places(series.entries, POLL))
    ids, acknowledged_s = _acknowledged(series.entries)
    until_s = _load_ends_s(series)
    lines = []
    for process in np.unique(series.process[series.is_f("poll")]).tolist():
        read_s = _first_seen_s(polled.take(np.flatnonzero(polled.process == process)), ids)
        ages = _oldest_unread_s(acknowledged_s, read_s, series.duration_s, until_s, bins)
        lines.append(Line(label=f"reader {process}", points=ages))
    lines.sort(key=lambda line: max((age for _, age in line.points), default=0.0), reverse=True)
    return lines[:readers_max]


def unseen_lines(series: RunSeries, *, bins: int) -> list[Line]:
    """Return the number of unread acknowledged records: by ordinary polls, and by any polls.

    A line that stays above 0 to the end of the run counts records that were never read.
    """
    ids, acknowledged_s = _acknowledged(series.entries)
    lines = []
    for label, kinds in (("by ordinary readers", (POLL,)), ("by any", (POLL, FINAL_POLL))):
        seen_s = _first_seen_s(series.entries.take(_places(series.entries, *kinds)), ids)
        grown = _counted_by(acknowledged_s, series.duration_s, bins)
        seen = _counted_by(np.maximum(seen_s, acknowledged_s), series.duration_s, bins)
        moments = _moments(series.duration_s, bins).tolist()
        lines.append(
            Line(label=label, points=list(zip(moments, (grown - seen).tolist(), strict=True)))
        )
    return lines


def _places(entries: Entries, *kinds: int) -> Ints:
    """Return the indexes of the records in ok polls of these kinds."""
    chosen: Flags = np.isin(entries.kind, kinds) & (entries.outcome == OK)
    return np.flatnonzero(chosen)


def _identity(entries: Entries) -> Ints:
    """Return one number per (key, value): the same in all entries of the run."""
    return (entries.key.astype(np.int64) << 48) ^ entries.value


def _acknowledged(entries: Entries) -> tuple[Ints, Floats]:
    """Return the acknowledged records, sorted by identity, and when each was acknowledged."""
    sent = (entries.kind == SEND) & (entries.offset >= 0)
    mine = entries.take(np.flatnonzero(sent))
    ids, first = np.unique(_identity(mine), return_index=True)
    return ids, mine.completed_ns[first] / _S


def _first_seen_s(polled: Entries, ids: Ints) -> Floats:
    """Return for each of `ids`, which are sorted, when it was first polled; inf: never."""
    seen_s = np.full(len(ids), _NEVER_S)
    if not len(ids):
        return seen_s
    found = _identity(polled)
    place = np.minimum(np.searchsorted(ids, found), len(ids) - 1)
    known = ids[place] == found
    np.minimum.at(seen_s, place[known], polled.completed_ns[known] / _S)
    return seen_s


def _load_ends_s(series: RunSeries) -> float:
    """Return when the last ordinary operation ended: the final reads come after it."""
    ordinary = series.is_f("send", "poll")
    return float(series.end_s[ordinary].max(initial=0.0))


def _moments(duration_s: float, bins: int) -> Floats:
    moments: Floats = (np.arange(bins, dtype=np.float64) + 1.0) * (duration_s / bins)
    return moments


def _oldest_unread_s(
    acknowledged_s: Floats, read_s: Floats, duration_s: float, until_s: float, bins: int
) -> list[tuple[float, float]]:
    """Return (moment, age of the oldest unread record at it), for moments up to `until_s`."""
    moments = _moments(duration_s, bins)
    oldest_s = np.full(bins, _NEVER_S)
    first = np.searchsorted(moments, acknowledged_s)  # the first moment at which it exists
    last = np.searchsorted(moments, read_s)  # the first at which it is read
    waiting = np.flatnonzero(last > first)
    # A record that waits over many moments is rare: most are read between two of them.
    for place in waiting[np.argsort(-acknowledged_s[waiting], kind="stable")].tolist():
        oldest_s[first[place] : last[place]] = acknowledged_s[place]
    ages = np.where(np.isfinite(oldest_s), moments - oldest_s, 0.0)
    shown = moments <= until_s
    return list(zip(moments[shown].tolist(), ages[shown].tolist(), strict=True))


def _counted_by(times_s: Floats, duration_s: float, bins: int) -> Ints:
    """Return the number of times before each moment."""
    return np.searchsorted(np.sort(times_s), _moments(duration_s, bins), side="right")

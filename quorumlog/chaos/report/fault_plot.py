"""The faults of a run, a bar per action: the steps, the role, the nodes, the duration."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from quorumlog.chaos.checkers.fault_bands import FINDINGS, Band
from quorumlog.chaos.faults.rows import read_details
from quorumlog.chaos.report.series import RunSeries
from quorumlog.charts.chart import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Chart

_BAR_PX: Final = 20
_BARS_MAX: Final = 60
_LABEL_PX: Final = 6.6  # width of a character
_S: Final = 1e9


@dataclass(slots=True, kw_only=True)
class Bar:
    """One action of the schedule, or one fault without an action (of another harness).

    role: the target in the schedule, with a note if no node held that role. links: the links that
    it hit, or "". steps: each operation with its nodes. asked: the requests to the cluster.
    """

    fault: str
    role: str
    links: str = ""
    start_s: float
    end_s: float
    steps: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The fault, or its only step if the step's name begins with the fault's."""
        is_one = len(set(self.steps)) == 1 and self.steps[0].startswith(self.fault)
        return self.steps[0] if is_one else self.fault

    @property
    def label(self) -> str:
        """The fault, its role and its targets, in one line."""
        role = f" ({self.role})" if self.role else ""
        steps = ", ".join(dict.fromkeys(self.steps))
        return f"{self.title}{role}" if self.title != self.fault else f"{self.fault}{role}: {steps}"

    @property
    def tooltip(self) -> str:
        """The label, the requests, the links that were hit, and the times."""
        links = f", {self.links}" if self.links else ""
        asked = "".join(f", {one}" for one in self.asked)
        return f"{self.label}{asked}{links}, {self.start_s:.2f} s to {self.end_s:.2f} s"


def bars_of(bands: Sequence[Band], duration_s: float) -> list[Bar]:
    """Return the bars in the order in which they began; bands of one action are one bar."""
    bars: dict[object, Bar] = {}
    for place, band in enumerate(bands):
        told = read_details(band.details)
        number, fault, remark = told or (-1 - place, band.fault, band.details)
        role, _, links = remark.partition("; ")
        end_s = min(band.end_ns / _S, duration_s)
        bar = bars.setdefault(
            number,
            Bar(fault=fault, role=role, links=links, start_s=band.start_ns / _S, end_s=end_s),
        )
        bar.role = bar.role or role
        bar.end_s = max(bar.end_s, end_s)
        bar.steps.append(str(band))
        if band.asked:
            bar.asked.append(band.asked)
    return sorted(bars.values(), key=lambda bar: bar.start_s)


def fault_plot(series: RunSeries, silent: Sequence[tuple[float, float]] = ()) -> str:
    """Draw one bar per fault, below each other where they overlap.

    silent: the times in seconds, from and until, without an acknowledgement: marked behind them.
    """
    duration_s = series.duration_s
    bars = bars_of(series.bands, duration_s)
    if not bars:
        return "<p>The run had no faults.</p>"
    shown = bars[:_BARS_MAX]
    lanes = _lanes(shown, Chart(duration_s=duration_s, y_min=0, y_max=1, y_ticks=False))
    height = TOP + BOTTOM + _BAR_PX * (max(lanes) + 1)
    chart = Chart(duration_s=duration_s, y_min=0, y_max=1, height=height, y_ticks=False)
    parts = [_silence(chart, gap, height) for gap in silent]
    parts += [_bar(chart, bar, lane) for bar, lane in zip(shown, lanes, strict=True)]
    left_out = len(bars) - len(shown)
    note = f"<p>{left_out} more faults are in the table.</p>" if left_out else ""
    svg = chart.svg("Faults over time").removesuffix("</svg>")
    grey = '<p class="legend"><span><i class="silent"></i>no acknowledgement</span></p>'
    return f"{grey if silent else ''}{svg}{''.join(parts)}</svg>{note}{_table(bars)}"


def _silence(chart: Chart, gap: tuple[float, float], height: int) -> str:
    """Return the mark of a time without an acknowledgement."""
    left, right = chart.x(gap[0]), chart.x(gap[1])
    return (
        f"<g><title>no acknowledgement from {gap[0]:.2f} s to {gap[1]:.2f} s</title>"
        f'<rect class="silent" x="{left}" y="{TOP}" width="{max(right - left, 2.0):.1f}" '
        f'height="{height - TOP - BOTTOM}"/></g>'
    )


def _lanes(bars: Sequence[Bar], chart: Chart) -> list[int]:
    """Return a lane for each bar, such that neither bars nor their labels overlap."""
    free_from: list[float] = []
    lanes = []
    for bar in bars:
        anchor, right = _label_place(chart, bar)
        left = min(chart.x(bar.start_s), anchor)
        lane = next((n for n, free in enumerate(free_from) if free <= left), None)
        if lane is None:
            lane = len(free_from)
            free_from.append(0.0)
        free_from[lane] = max(chart.x(bar.end_s), right)
        lanes.append(lane)
    return lanes


def _label_place(chart: Chart, bar: Bar) -> tuple[float, float]:
    """Return the left and right ends of the label: beside the start, or at the right border."""
    room = len(bar.label) * _LABEL_PX
    anchor = max(float(LEFT), min(chart.x(bar.start_s) + 4, WIDTH - RIGHT - room))
    return anchor, anchor + room


def _bar(chart: Chart, bar: Bar, lane: int) -> str:
    left, right = chart.x(bar.start_s), chart.x(bar.end_s)
    top = TOP + lane * _BAR_PX
    style = "ended" if bar.fault in FINDINGS else "hit"
    anchor, _ = _label_place(chart, bar)
    return (
        f"<g><title>{escape(bar.tooltip)}</title>"
        f'<rect class="{style}" x="{left}" y="{top + 2}" width="{max(right - left, 2.0):.1f}" '
        f'height="{_BAR_PX - 4}"/>'
        f'<text class="bar" x="{anchor:.1f}" y="{top + 14}">{escape(bar.label)}</text></g>'
    )


def _table(bars: Sequence[Bar]) -> str:
    rows = "".join(
        f"<tr><td>{bar.start_s:.2f} s</td><td>{bar.end_s:.2f} s</td><td>{escape(bar.fault)}</td>"
        f"<td>{escape(bar.role)}</td><td>{escape(', '.join([*bar.steps, *bar.asked]))}</td>"
        f"<td>{escape(bar.links)}</td></tr>"
        for bar in bars
    )
    return (
        "<details class='allowed'><summary>as a table</summary><div class='wide'><table><tr>"
        "<th>from</th><th>until</th><th>fault</th><th>role</th><th>operations</th>"
        "<th>links</th></tr>"
        f"{rows}</table></div></details>"
    )


def band_labels(series: RunSeries) -> list[tuple[str, float, float]]:
    """Return (label, start, end) of each bar, for the bands of the other plots."""
    return [(bar.title, bar.start_s, bar.end_s) for bar in bars_of(series.bands, series.duration_s)]

"""The numbers of the nodes during a run, as an operator of Kafka sees them on a dashboard."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from quorumlog.chaos.report.plots import legend
from quorumlog.chaos.run.node_metrics import NodeMetrics
from quorumlog.charts.chart import Chart

_HEIGHT: Final = 150
_S: Final = 1_000_000_000
_QUANTILE: Final = 0.99
Points = Sequence[tuple[float, float]]


@dataclass(slots=True)
class _Second:
    """The last line of each node within one second, and the growth of its totals before it."""

    last: dict[int, NodeMetrics] = field(default_factory=dict)
    elections: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    produces: dict[float, int] = field(default_factory=lambda: defaultdict(int))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOverTime:
    """(seconds, value) for each second with a line; a second without produces has no p99."""

    under_replicated: Points
    elections: Points
    p99_ms: Points
    lag: Points


def over_time(metrics: Sequence[NodeMetrics]) -> MetricsOverTime:
    """Sum the nodes; a new leader counts once, although every controller sees it.

    A total that has shrunk is of a new process: its growth counts as 0.
    """
    seconds: defaultdict[int, _Second] = defaultdict(_Second)
    by_node: defaultdict[int, list[NodeMetrics]] = defaultdict(list)
    for one in metrics:
        seconds[one.time_ns // _S].last[one.node] = one
        by_node[one.node].append(one)
    for node, lines in by_node.items():
        for before, after in pairwise(lines):
            second = seconds[after.time_ns // _S]
            second.elections[node] += max(after.elections - before.elections, 0)
            earlier = dict(before.produces)
            growth = [(bound, count - earlier.get(bound, 0)) for bound, count in after.produces]
            if all(count >= 0 for _, count in growth):
                for bound, count in growth:
                    second.produces[bound] += count
    at = sorted(seconds.items())
    quantiles = [(place + 0.5, quantile_s(second.produces, _QUANTILE)) for place, second in at]
    return MetricsOverTime(
        under_replicated=[
            (place + 0.5, sum(one.under_replicated for one in second.last.values()))
            for place, second in at
        ],
        elections=[
            (place + 0.5, max(second.elections.values(), default=0)) for place, second in at
        ],
        p99_ms=[(place, 1000 * found) for place, found in quantiles if found is not None],
        lag=[(place + 0.5, sum(one.lag for one in second.last.values())) for place, second in at],
    )


def quantile_s(buckets: Mapping[float, int], share: float) -> float | None:
    """Return a quantile, as `histogram_quantile` of PromQL does; None without observations.

    `buckets`: by upper bound in seconds, the number of observations below it.
    """
    ordered = sorted(buckets.items())
    if not ordered or ordered[-1][1] == 0:
        return None
    rank, low, below = share * ordered[-1][1], 0.0, 0
    for bound, count in ordered:
        if count >= rank:
            return low + (bound - low) * (rank - below) / max(count - below, 1)
        low, below = bound, count
    return low


def metrics_plot(
    metrics: Sequence[NodeMetrics], bands: Sequence[tuple[str, float, float]], duration_s: float
) -> str:
    """Draw the charts; "" without metrics."""
    if not metrics:
        return ""
    found = over_time(metrics)
    charts = (
        ("partitions", {"node4": ("under-replicated", found.under_replicated),
                        "node0": ("with a new leader, in a second", found.elections)}),
        ("ms", {"p99": ("99th percentile of produces in the brokers", found.p99_ms)}),
        ("records", {"node3": ("lag of the groups' committed offsets", found.lag)}),
    )  # fmt: skip
    drawn = []
    for y_label, lines in charts:
        points = [value for _, line in lines.values() for _, value in line]
        chart = Chart(
            duration_s=duration_s,
            y_min=0,
            y_max=max([1.0, *points]) * 1.05,
            height=_HEIGHT,
            y_label=y_label,
        )
        chart.bands(bands)
        for style, (label, line) in lines.items():
            chart.line(line, style, label)
        title = f"Metrics of the nodes over time: {', '.join(label for label, _ in lines.values())}"
        items = [(style, label) for style, (label, _) in lines.items()]
        drawn.append(chart.svg(title) + legend(*items))
    words = (
        "From GET /metrics of each node, once a second. A node that does not answer is left out."
    )
    return f"{''.join(drawn)}<p>{words}</p>"

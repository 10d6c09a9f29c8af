"""The leaders during a run: a lane per partition, coloured by its leader, and the controller."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from quorumlog.chaos.run.cluster_states import ClusterState, PartitionState
from quorumlog.charts.chart import BOTTOM, LEFT, TOP, Chart

_LANE_PX: Final = 20
_LANES_MAX: Final = 24
_COLOURS: Final = 6  # classes node0 to node5 of the style
_LABEL_PX: Final = 6.6
_NAME_MAX: Final = 10  # characters beside a lane
_S: Final = 1e9

Told = tuple[str, str, bool]
"""A class of colour, a label, and whether the partition lacks replicas in its ISR."""


def state_plot(
    states: Sequence[ClusterState], bands: Sequence[tuple[str, float, float]], duration_s: float
) -> str:
    """Draw the lanes; "" without states."""
    keys = sorted({key for state in states for key in state.partitions})[:_LANES_MAX]
    if not keys:
        return ""
    full = max(len(one.isr) for state in states for one in state.partitions.values())
    height = TOP + BOTTOM + _LANE_PX * (len(keys) + 1)
    chart = Chart(duration_s=duration_s, y_min=0, y_max=1, height=height, y_ticks=False)
    chart.bands(bands)
    lanes = [_lane(chart, "controller", 0, _spans(states, duration_s, _controller))]
    for place, key in enumerate(keys, start=1):

        def tell(state: ClusterState, key: str = key) -> Told | None:
            one = state.partitions.get(key)
            return None if one is None else _partition(one, full)

        lanes.append(_lane(chart, key, place, _spans(states, duration_s, tell)))
    svg = chart.svg("Leaders and in-sync replicas over time").removesuffix("</svg>")
    words = (
        "Each lane shows the leader: its node, its epoch, and the ISR. A dashed part has fewer "
        "replicas in sync than the largest ISR; a gap: no leader, or no broker reported one."
    )
    return f"{svg}{''.join(lanes)}</svg><p>{words}</p>"


def _partition(one: PartitionState, full: int) -> Told | None:
    if one.leader < 0:
        return None
    label = f"{one.leader}, e{one.epoch} [{','.join(map(str, one.isr))}]"
    return f"node{one.leader % _COLOURS}", label, len(one.isr) < full


def _controller(state: ClusterState) -> Told | None:
    if state.controller < 0:
        return None
    return f"node{state.controller % _COLOURS}", str(state.controller), False


def _spans(
    states: Sequence[ClusterState], duration_s: float, tell: Callable[[ClusterState], Told | None]
) -> list[tuple[float, float, Told]]:
    """Return (start, end, content) for each time in which the content was the same."""
    spans: list[tuple[float, float, Told]] = []
    ends = [state.time_ns / _S for state in states[1:]] + [duration_s]
    for state, end_s in zip(states, ends, strict=True):
        told = None if state.error else tell(state)
        start_s = state.time_ns / _S
        if told is None:
            continue
        if spans and spans[-1][2] == told and spans[-1][1] >= start_s:
            spans[-1] = (spans[-1][0], end_s, told)
        else:
            spans.append((start_s, end_s, told))
    return spans


def _lane(chart: Chart, name: str, place: int, spans: Sequence[tuple[float, float, Told]]) -> str:
    top = TOP + place * _LANE_PX
    cells = []
    for start_s, end_s, (style, label, is_short) in spans:
        left, right = chart.x(start_s), chart.x(end_s)
        box = f'x="{left}" y="{top + 2}" width="{max(right - left, 1.0):.1f}" height="16"'
        cells.append(
            f"<g><title>{escape(name)}: {escape(label)}, {start_s:.2f} s to {end_s:.2f} s</title>"
            f'<rect class="{style}{" short" if is_short else ""}" {box}/>'
        )
        if right - left > len(label) * _LABEL_PX + 6:
            cells.append(f'<text class="bar" x="{left + 4}" y="{top + 14}">{escape(label)}</text>')
        cells.append("</g>")
    shown = name if len(name) <= _NAME_MAX else "…" + name[1 - _NAME_MAX :]
    place_of_name = f'x="{LEFT - 6}" y="{top + 14}" text-anchor="end"'
    text = f'<text class="tick" {place_of_name}>{escape(shown)}</text>'
    return f"<g>{text}{''.join(cells)}</g>"

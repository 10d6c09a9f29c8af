"""A chart of bars in groups, each with the range of its runs, as inline SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from quorumlog.charts.chart import BOTTOM, LEFT, RIGHT, TOP, WIDTH, number, ticks

_GAP: Final = 0.25  # between groups, as a share of a group
_WHISKER_PX: Final = 4
_LABEL_PX: Final = 6.6  # width of a character


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar. `low` and `high`: the range of its runs; `style`: a class of style.css."""

    value: float
    low: float
    high: float
    style: str
    label: str = ""
    """Below the bar, if it has room there; always in the tooltip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarGroup:
    """Bars beside each other, with one title below them."""

    title: str
    bars: Sequence[Bar]


def bar_chart(groups: Sequence[BarGroup], *, label: str, y_label: str, height: int = 240) -> str:
    """Return the picture; its values begin at 0. `label` is for screen readers."""
    top = max((bar.high for group in groups for bar in group.bars), default=0.0) * 1.05 or 1.0
    bottom = height - BOTTOM
    scale = _Scale(top, bottom)
    parts = [_axis(scale, y_label)]
    room = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    for place, group in enumerate(groups):
        left = LEFT + room * (place + _GAP / 2)
        width = room * (1 - _GAP) / max(len(group.bars), 1)
        for index, bar in enumerate(group.bars):
            parts.append(_bar(bar, left + index * width, width, scale, group.title))
        middle = LEFT + room * (place + 0.5)
        parts.append(
            f'<text class="tick" x="{middle:.1f}" y="{bottom + 30}" text-anchor="middle">'
            f"{escape(group.title)}</text>"
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values from 0, at `bottom_px`, to `top`."""

    top: float
    bottom_px: int

    def y(self, value: float) -> float:
        return self.bottom_px - min(value / self.top, 1.0) * (self.bottom_px - TOP)


def _axis(scale: _Scale, y_label: str) -> str:
    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        for tick in ticks(0, scale.top, 5)
        for y in [scale.y(tick)]
    ]
    middle = (TOP + scale.bottom_px) / 2
    lines.append(
        f'<text class="tick" x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">{escape(y_label)}</text>'
    )
    return "".join(lines)


def _bar(bar: Bar, left: float, width: float, scale: _Scale, title: str) -> str:
    y, low, high = (scale.y(value) for value in (bar.value, bar.low, bar.high))
    bottom = scale.bottom_px
    middle = left + width / 2
    words = f"{title}, {bar.label}" if bar.label else title
    tooltip = f"{words}: {bar.value:,.4g} ({bar.low:,.4g} to {bar.high:,.4g})"
    shown = ""
    if bar.label and len(bar.label) * _LABEL_PX <= width:
        shown = (
            f'<text class="tick" x="{middle:.1f}" y="{bottom + 14}" text-anchor="middle">'
            f"{escape(bar.label)}</text>"
        )
    whisker = ""
    if bar.high > bar.low:
        cap = min(_WHISKER_PX, width / 3)
        whisker = (
            f'<path class="whisker" d="M{middle:.1f} {low:.1f}V{high:.1f}'
            f"M{middle - cap:.1f} {low:.1f}h{2 * cap:.1f}"
            f'M{middle - cap:.1f} {high:.1f}h{2 * cap:.1f}"/>'
        )
    return (
        f"<g><title>{escape(tooltip)}</title>"
        f'<rect class="{bar.style}" x="{left + width * 0.06:.1f}" y="{y:.1f}" '
        f'width="{width * 0.88:.1f}" height="{max(bottom - y, 0.5):.1f}"/>'
        f"{whisker}</g>{shown}"
    )

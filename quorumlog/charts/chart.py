"""A small chart: axes, fault bands, and marks, as inline SVG."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

WIDTH: Final = 1060
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 26, 34
_LABEL_PX: Final = 7.0  # width of a character of the bands' labels


class Chart:
    """Time runs from left to right, in seconds; `y_max` is the top. With `log`, from `y_min`."""

    def __init__(
        self,
        *,
        duration_s: float,
        y_min: float,
        y_max: float,
        height: int = 240,
        log: bool = False,
        y_label: str = "",
        y_ticks: bool = True,
    ) -> None:
        self._duration_s: Final = duration_s
        self._log: Final = log
        self._low: Final = math.log10(y_min) if log else y_min
        self._high: Final = math.log10(y_max) if log else max(y_max, y_min + 1e-9)
        self._height: Final = height
        self._parts: list[str] = []
        self._axes(y_label, y_ticks=y_ticks)

    def x(self, seconds: float) -> float:
        """Return the x coordinate of a moment."""
        share = min(max(seconds / self._duration_s, 0.0), 1.0)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        number = math.log10(max(value, 1e-12)) if self._log else value
        share = min(max((number - self._low) / (self._high - self._low or 1.0), 0.0), 1.0)
        return round(self._height - BOTTOM - share * (self._height - TOP - BOTTOM), 1)

    def bands(self, bands: Sequence[tuple[str, float, float]]) -> None:
        """Shade the faults, each with its name above the plot if there is room."""
        free_from = float(LEFT)
        for label, start_s, end_s in sorted(bands, key=lambda band: band[1]):
            left, right = self.x(start_s), self.x(end_s)
            self._parts.append(
                f'<rect class="band" x="{left}" y="{TOP}" width="{max(right - left, 1.5):.1f}" '
                f'height="{self._height - TOP - BOTTOM}"><title>{escape(label)}: '
                f"{start_s:.2f} s to {end_s:.2f} s</title></rect>"
            )
            room = min(WIDTH - RIGHT, left + len(label) * _LABEL_PX)
            if left >= free_from and room < WIDTH - RIGHT:
                self._parts.append(
                    f'<text class="fault" x="{left}" y="{TOP - 8}">{escape(label)}</text>'
                )
                free_from = room + 8

    def line(self, points: Iterable[tuple[float, float]], style: str, label: str = "") -> None:
        """Draw a line of class `style` through (seconds, value)."""
        places = " ".join(f"{self.x(seconds)},{self.y(value)}" for seconds, value in points)
        title = f"<title>{escape(label)}</title>" if label else ""
        self._parts.append(f'<polyline class="line {style}" points="{places}">{title}</polyline>')

    def dots(
        self, points: Iterable[tuple[float, float]], style: str, *, radius: float = 1.6
    ) -> None:
        """Draw dots as one path: a thousand of them cost a few kilobytes."""
        size = round(radius * 2, 1)
        path = "".join(f"M{self.x(seconds)} {self.y(value)}h0" for seconds, value in points)
        if path:
            self._parts.append(f'<path class="dots {style}" stroke-width="{size}" d="{path}"/>')

    def mark(self, seconds: float, value: float, style: str, title: str) -> None:
        """Draw one dot with a tooltip."""
        self._parts.append(
            f'<circle class="mark {style}" cx="{self.x(seconds)}" cy="{self.y(value)}" r="4.5">'
            f"<title>{escape(title)}</title></circle>"
        )

    def svg(self, label: str) -> str:
        """Return the picture; `label` is read out by a screen reader."""
        return (
            f'<svg viewBox="0 0 {WIDTH} {self._height}" role="img" aria-label="{escape(label)}">'
            f"{''.join(self._parts)}</svg>"
        )

    def _axes(self, y_label: str, *, y_ticks: bool) -> None:
        bottom = self._height - BOTTOM
        for tick in self._y_ticks() if y_ticks else []:
            y = self.y(tick)
            self._parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
                f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">'
                f"{number(tick)}</text>"
            )
        for tick in ticks(0, self._duration_s, 10):
            x = self.x(tick)
            self._parts.append(
                f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>'
                f'<text class="tick" x="{x}" y="{bottom + 18}" text-anchor="middle">'
                f"{number(tick)} s</text>"
            )
        self._parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
        )
        if y_label:
            middle = (TOP + bottom) / 2
            self._parts.append(
                f'<text class="tick" x="14" y="{middle}" text-anchor="middle" '
                f'transform="rotate(-90 14 {middle})">{escape(y_label)}</text>'
            )

    def _y_ticks(self) -> list[float]:
        if not self._log:
            return ticks(self._low, self._high, 5)
        return [10.0**power for power in range(math.ceil(self._low), math.floor(self._high) + 1)]


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers from `low` to `high`: 1, 2 or 5 times a power of ten apart."""
    span = max(high - low, 1e-9)
    unit = 10.0 ** math.floor(math.log10(span / most))
    step = next(unit * n for n in (1, 2, 5, 10, 20) if span / (unit * n) <= most)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Format a tick: 1.5k rather than 1500, and no needless zeros."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:.4g}"

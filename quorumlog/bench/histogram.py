"""Latencies in buckets of one percent: bounded memory for any number of values. Pure."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

_STEP: Final = math.log(1.01)
_LEAST_MS: Final = 1e-4
PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9, 99.99)


class Histogram:
    """A number of latencies in ms. Percentiles are exact to 1 %; average, min and max are exact."""

    def __init__(self) -> None:
        self._counts: Final = Counter[int]()
        self.count = 0
        self.sum_ms = 0.0
        self.min_ms = math.inf
        self.max_ms = 0.0

    def add(self, latency_ms: float) -> None:
        """Add one latency; a negative one counts as 0."""
        latency_ms = max(latency_ms, 0.0)
        self._counts[round(math.log(max(latency_ms, _LEAST_MS)) / _STEP)] += 1
        self.count += 1
        self.sum_ms += latency_ms
        self.min_ms = min(self.min_ms, latency_ms)
        self.max_ms = max(self.max_ms, latency_ms)

    @property
    def average_ms(self) -> float:
        """The mean; 0 without latencies."""
        return self.sum_ms / self.count if self.count else 0.0

    def percentile_ms(self, percent: float) -> float:
        """Return the least latency that `percent` of all do not exceed; 0 without latencies."""
        rest = math.ceil(self.count * percent / 100)
        for bucket in sorted(self._counts):
            rest -= self._counts[bucket]
            if rest <= 0:
                return min(max(math.exp(bucket * _STEP), self.min_ms), self.max_ms)
        return self.max_ms

    def over(self, edges_ms: Sequence[float]) -> list[int]:
        """Return the number of latencies in each of the ranges between ascending edges.

        The first range has all latencies below `edges_ms[1]`, the last has the rest:
        `len(edges_ms) - 1` ranges.
        """
        counts = [0] * (len(edges_ms) - 1)
        for bucket, count in self._counts.items():
            value = math.exp(bucket * _STEP)
            place = sum(value >= edge for edge in edges_ms[1:-1])
            counts[place] += count
        return counts

    def as_json(self) -> dict[str, Any]:
        """Return the figures: count, avg, min, max and the percentiles, in ms."""
        return {
            "count": self.count,
            "avg_ms": round(self.average_ms, 3),
            "min_ms": round(self.min_ms, 3) if self.count else 0.0,
            "max_ms": round(self.max_ms, 3),
            **{
                f"p{percent:g}_ms": round(self.percentile_ms(percent), 3) for percent in PERCENTILES
            },
        }


def edges_of(least_ms: float, most_ms: float, *, per_decade: int = 5) -> list[float]:
    """Return the edges of ranges, equally wide on a logarithmic scale, that hold both latencies."""
    first = math.floor(math.log10(max(least_ms, _LEAST_MS)) * per_decade)
    last = math.floor(math.log10(max(most_ms, least_ms, _LEAST_MS)) * per_decade) + 1
    return [10 ** (place / per_decade) for place in range(first, last + 1)]


def drawn(histogram: Histogram, *, width: int = 50) -> Iterator[str]:
    """Yield the lines of a picture in text: a bar for each range of latencies."""
    if not histogram.count:
        return
    edges = edges_of(histogram.min_ms, histogram.max_ms)
    counts = histogram.over(edges)
    most = max(counts)
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        bar = "█" * round(width * count / most) or ("▏" if count else "")
        yield f"{low:>9.3g} - {high:<7.3g} ms  {bar:<{width}}  {count:,}".rstrip()

"""The plan of a check: the part of each key, and the large keys whose ranges are parts.

docs/decisions/0055-hot-keys.md
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.checking.parts.table_cuts import Cuts, spread

HOT: Final = 2_000_000  # messages of a key; a larger key is split
MICRO_PER_RANGE: Final = 1_000_000
RANGES_MAX: Final = 512  # of one key


class Extent(NamedTuple):
    """The size of a key.

    size: number of micro-operations. unplaced: number of those without an offset. low, high: the
    lowest and the highest offset, 0 and -1 if there is none.
    """

    size: int
    unplaced: int
    low: int
    high: int

    def joined(self, other: "Extent") -> "Extent":
        """Return the extent of both."""
        placed = [one for one in (self, other) if one.high >= 0] or [self]
        return Extent(
            self.size + other.size,
            self.unplaced + other.unplaced,
            min(one.low for one in placed),
            max(one.high for one in placed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parts of a check.

    parts: the number of parts that check whole keys. places: the parts of large keys. cuts: the
    split keys; their parts come after the others.
    """

    parts: int
    places: Mapping[str, int]
    cuts: Mapping[str, Cuts]

    @property
    def parts_in_all(self) -> int:
        """The number of all parts, with the ranges."""
        return self.parts + sum(len(cuts.starts) for cuts in self.cuts.values())


def plan_of(
    extents: Mapping[str, Extent], micro: int, checker: Checker, *, parts_for: Callable[[int], int]
) -> Plan:
    """Return the plan for a history of `micro` micro-operations; `extents` has its large keys.

    `parts_for` returns the number of parts for keys with so many micro-operations.
    """
    starts = {key: _starts(extent) for key, extent in extents.items() if checker.ranges}
    hot = {key: found for key, found in starts.items() if len(found) > 1}
    parts = parts_for(micro - sum(extents[key].size for key in hot))
    sizes = {key: extent.size for key, extent in extents.items() if key not in hot}
    return Plan(parts=parts, places=spread(sizes, parts), cuts=dict(_cuts(hot.items(), parts)))


def _starts(extent: Extent) -> tuple[int, ...]:
    """Return the starts of a key's ranges; a single one if the key is not split.

    Entries without an offset go to every range, so they must not exceed the size of a range.
    """
    if extent.size <= HOT or extent.unplaced > MICRO_PER_RANGE:
        return (0,)
    ranges = min(RANGES_MAX, extent.size // MICRO_PER_RANGE)
    width = extent.high + 1 - extent.low
    return tuple(sorted({extent.low + width * place // ranges for place in range(ranges)}))


def _cuts(
    hot: Iterable[tuple[str, tuple[int, ...]]], first_part: int
) -> Iterable[tuple[str, Cuts]]:
    for key, starts in sorted(hot):
        yield key, Cuts(first_part, starts)
        first_part += len(starts)

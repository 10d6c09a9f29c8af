"""Links between nodes: delay, loss, duplication, reordering, and cuts in one or both directions.

Each directed link has its own generator and draws the same number of times for every message, so
that events on one link do not change the others.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from quorumlog.chaos.faults.fault import MILLION, Fault
from quorumlog.chaos.faults.traffic import Delay, Duplication, Loss, Reorder
from quorumlog.chaos.simulation.kernel.randomness import seeded

_HEALTHY: Final = Delay(min_us=200, spread_us=500)
_SECOND_COPY_US: Final = 50_000  # how much later than the first it may be, besides `late_us`


class Network:
    """Decides when a message arrives; the world delivers it."""

    def __init__(self, seed: int, node_ids: tuple[int, ...]) -> None:
        self.is_calm = False  # after the faults: nothing is lost, every message is quick
        self._node_ids = node_ids
        self._cuts = Counter[tuple[int, int]]()
        self._active: list[Fault] = []
        self._loss_ppm = self._duplicate_ppm = self._late_ppm = self._late_us = 0
        self._delay = _HEALTHY
        self._links = {
            (source, target): seeded(f"link {source} {target}", seed)
            for source in node_ids
            for target in node_ids
        }

    def arrivals_us(self, source: int, target: int) -> list[int]:
        """Return after how long a message arrives: never, once or twice."""
        rng = self._links[source, target].random
        lost, twice, late, first, second = rng(), rng(), rng(), rng(), rng()
        if self.is_calm:
            return [200 + int(first * 500)]
        if self._cuts[source, target] or lost * MILLION < self._loss_ppm:
            return []
        # Cubed: most are quick, a few are slow, without a logarithm that platforms round apart.
        delay = self._delay
        delays = [delay.min_us + int(first * first * first * delay.spread_us)]
        if late * MILLION < self._late_ppm:
            delays[0] += int(second * self._late_us)
        if twice * MILLION < self._duplicate_ppm:
            delays.append(delays[0] + int(second * (self._late_us + _SECOND_COPY_US)))
        return delays

    def is_connected(self, source: int, target: int) -> bool:
        """Whether both directions work."""
        return not (self._cuts[source, target] or self._cuts[target, source])

    # --- faults ---

    def begin(self, fault: Fault) -> None:
        """Let the messages from now on suffer from this fault. The worst of one kind counts."""
        self._active.append(fault)
        self._sum_up()

    def end(self, fault: Fault) -> None:
        """Take one fault back."""
        self._active.remove(fault)
        self._sum_up()

    def _sum_up(self) -> None:
        active = self._active
        self._loss_ppm = max((one.ppm for one in active if isinstance(one, Loss)), default=0)
        doubled = (one.ppm for one in active if isinstance(one, Duplication))
        self._duplicate_ppm = max(doubled, default=0)
        reordered = [one for one in active if isinstance(one, Reorder)]
        self._late_ppm = max((one.ppm for one in reordered), default=0)
        self._late_us = max((one.late_us for one in reordered), default=0)
        slow = [one for one in active if isinstance(one, Delay)]
        self._delay = max(slow, key=lambda one: one.spread_us, default=_HEALTHY)

    def links_between(self, targets: Iterable[int], direction: str | None) -> list[tuple[int, int]]:
        """List the links that join the targets and the others: `out` of them, `in`, or both."""
        inside = sorted({*targets})
        outside = [node_id for node_id in self._node_ids if node_id not in inside]
        links = []
        for one in inside:
            for other in outside:
                links += [(one, other)] if direction != "in" else []
                links += [(other, one)] if direction != "out" else []
        return links

    def cut(self, links: Iterable[tuple[int, int]]) -> None:
        """Lose all that is sent on these links from now on. Cuts add up."""
        self._cuts.update(links)

    def mend(self, links: Iterable[tuple[int, int]]) -> None:
        """Undo one cut of each link."""
        self._cuts.subtract(links)

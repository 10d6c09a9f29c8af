"""Links between nodes: delay, loss, duplication, reordering, and cuts in one or both directions.

One PRNG per directed link, and the same number of draws for every message: what happens on one
link does not change the others.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.worlds.quorum.faults import MILLION


class Network:
    """Decides when a message arrives; the simulator delivers it."""

    def __init__(self, seed: int, node_ids: tuple[int, ...], parameters: dict[str, Any]) -> None:
        self.parameters: Final = parameters
        self.is_calm = False  # after the faults: nothing is lost, all is quick
        self._cuts = Counter[tuple[int, int]]()
        self._node_ids = node_ids
        self._links = {
            (source, target): seeded(f"link {source} {target}", seed)
            for source in node_ids
            for target in node_ids
        }

    def arrivals_us(self, source: int, target: int) -> list[int]:
        """Return after how long a message arrives: never, once or twice."""
        rng, its = self._links[source, target].random, self.parameters
        lost, twice, late, first, second = rng(), rng(), rng(), rng(), rng()
        if self.is_calm:
            return [200 + int(first * 500)]
        if self._cuts[source, target] or lost * MILLION < its["loss_ppm"]:
            return []
        # Cubed: most are quick, a few are slow, without a logarithm that platforms round apart.
        delays = [its["delay_min_us"] + int(first * first * first * its["delay_spread_us"])]
        if late * MILLION < its["late_ppm"]:
            delays[0] += int(second * its["late_us"])
        if twice * MILLION < its["duplicate_ppm"]:
            delays.append(delays[0] + int(second * (its["late_us"] + 50_000)))
        return delays

    def is_connected(self, source: int, target: int) -> bool:
        """Whether both directions work."""
        return not (self._cuts[source, target] or self._cuts[target, source])

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
        """Lose all that is sent on them from now on. Cuts add up."""
        self._cuts.update(links)

    def mend(self, links: Iterable[tuple[int, int]]) -> None:
        """Undo one cut of each."""
        self._cuts.subtract(links)

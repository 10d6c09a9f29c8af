"""Links between hosts: how long a segment takes, and what holds it back.

A link is one direction between two hosts, for the connections to one port. Rules are imposed on
links and lifted by their id; several may hold at once, and each ends by itself.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from quorumlog.chaos.simulation.kernel.randomness import seeded

BASE_LATENCIES_S: Final = (0.0001, 0.0003, 0.001, 0.005)
RETRY_S_MAX: Final = 0.2  # until TCP tries again after a cut


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """What one rule does to a link.

    holds: nothing passes; TCP keeps it and tries again later.
    refuses: a new connection is refused; those that exist stay.
    min_us, spread_us: what a segment takes longer.
    bytes_per_s: how much passes in a second; 0: as much as comes.
    """

    holds: bool = False
    refuses: bool = False
    min_us: int = 0
    spread_us: int = 0
    bytes_per_s: int = 0


class Link:
    """One direction between two hosts. `now_s` is true time."""

    def __init__(self, source: str, target: str, port: int, seed: int) -> None:
        self.source: Final = source
        self.target: Final = target
        self.port: Final = port
        self.rules: Final[dict[str, LinkState]] = {}
        self.held: Final = deque[Callable[[], None]]()
        self._rng: Final[Random] = seeded(f"link {source} {target} {port}", seed)
        self._base_s: Final = self._rng.choice(BASE_LATENCIES_S)
        self._free_at_s = 0.0  # where a rate is limited

    @property
    def is_held(self) -> bool:
        """Whether nothing passes now."""
        return any(rule.holds for rule in self.rules.values())

    @property
    def refuses(self) -> bool:
        """Whether new connections are refused now."""
        return any(rule.refuses for rule in self.rules.values())

    def latency_s(self, size: int, now_s: float) -> float:
        """Draw how long a segment of `size` bytes takes."""
        jitter = self._rng.random()
        takes_s = self._base_s * (0.8 + jitter * jitter)
        for rule in self.rules.values():
            if rule.min_us or rule.spread_us:
                takes_s += (rule.min_us + rule.spread_us * self._rng.random()) / 1e6
            if rule.bytes_per_s:
                self._free_at_s = max(self._free_at_s, now_s) + size / rule.bytes_per_s
                takes_s += self._free_at_s - now_s
        return takes_s

    def retry_s(self) -> float:
        """Draw when what was held back is sent again, once the link works."""
        return self._rng.random() * RETRY_S_MAX

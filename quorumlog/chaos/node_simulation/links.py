"""Links between hosts: the latency of segments, and the rules that hold segments back.

A link is one direction between two hosts, for the connections to one port. Its rules are the same
as in the forwarders between real processes.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from quorumlog.chaos.network.link_state import LinkState
from quorumlog.chaos.simulation.kernel.randomness import seeded

BASE_LATENCIES_S: Final = (0.0001, 0.0003, 0.001, 0.005)
RETRY_S_MAX: Final = 0.2  # the delay of TCP's retransmission after a cut


class Link:
    """One direction between two hosts. `now_s` is true time."""

    def __init__(self, source: str, target: str, port: int, seed: int) -> None:
        self.source: Final = source
        self.target: Final = target
        self.port: Final = port
        self.held: Final = deque[Callable[[], None]]()
        self._rng: Final[Random] = seeded(f"link {source} {target} {port}", seed)
        self.rules: Final = LinkState(self._rng.random)
        self._base_s: Final = self._rng.choice(BASE_LATENCIES_S)
        self._free_at_s = 0.0  # if a rule limits the rate

    def latency_s(self, size: int, now_s: float) -> float:
        """Draw the latency of a segment of `size` bytes, in s."""
        jitter = self._rng.random()
        takes_s = self._base_s * (0.8 + jitter * jitter)
        rules = self.rules
        if not rules.is_plain:
            takes_s += rules.delay_s()
            if rules.bytes_per_s:
                self._free_at_s = max(self._free_at_s, now_s) + size / rules.bytes_per_s
                takes_s += self._free_at_s - now_s
        return takes_s

    def retry_s(self) -> float:
        """Draw the delay after which held segments are sent again on a healed link, in s."""
        return self._rng.random() * RETRY_S_MAX

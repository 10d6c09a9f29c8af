"""The wait before the next attempt: exponential, capped, with jitter (KIP-580)."""

from dataclasses import dataclass

JITTER = 0.2
DOUBLINGS_MAX = 32  # beyond any cap; keeps the power finite


@dataclass(frozen=True, slots=True)
class Backoff:
    """`initial_ms`, doubled with every failure, never above `max_ms` but for the jitter."""

    initial_ms: float
    max_ms: float

    def delay_ms(self, failures: int, random_fraction: float) -> float:
        """Return how long to wait after `failures` >= 1 in a row.

        `random_fraction` in [0, 1) moves it by up to 20 %, so that waiting clients spread out.
        """
        doublings = min(max(failures - 1, 0), DOUBLINGS_MAX)
        delay_ms = min(self.initial_ms * 2.0**doublings, max(self.max_ms, self.initial_ms))
        return delay_ms * (1 - JITTER + 2 * JITTER * random_fraction)

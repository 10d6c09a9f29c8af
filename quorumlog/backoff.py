"""The wait before the next attempt: exponential, capped, with jitter (KIP-580)."""

from dataclasses import dataclass

JITTER = 0.2
DOUBLINGS_MAX = 32  # more than any cap needs; keeps the power finite


@dataclass(frozen=True, slots=True)
class Backoff:
    """`initial_ms`, doubled with every failure, at most `max_ms` before the jitter."""

    initial_ms: float
    max_ms: float

    def delay_ms(self, failures: int, random_fraction: float) -> float:
        """Return the wait in ms after `failures` >= 1 in a row.

        `random_fraction` in [0, 1) changes it by up to 20 %, so that waiting clients spread out.
        """
        doublings = min(max(failures - 1, 0), DOUBLINGS_MAX)
        delay_ms = min(self.initial_ms * 2.0**doublings, max(self.max_ms, self.initial_ms))
        return delay_ms * (1 - JITTER + 2 * JITTER * random_fraction)

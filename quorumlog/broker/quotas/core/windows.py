"""The measures behind quotas: the rate over a sliding window, and a bucket of tokens.

Sources: KIP-13, KIP-219, KIP-599; Kafka's `Rate`, `SampledStat`, `TokenBucket`, `QuotaUtils`.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLengths:
    """A window has `samples` samples of `sample_ms` each: quota.window.num and .size.seconds."""

    samples: int = 11
    sample_ms: int = 1000

    @property
    def full_ms(self) -> int:
        """The length of the full samples, without the present one."""
        return max(1, self.samples - 1) * self.sample_ms

    @property
    def whole_ms(self) -> int:
        """The length with the present sample; older amounts have expired."""
        return self.samples * self.sample_ms


class QuotaWindow:
    """The amounts of the last samples, and the delay that brings their rate down to `bound`.

    `bound` is in units a second; after a change it applies to the amounts of the window, too.

    Invariants:
    1. The rate is over at least `full_ms`: a new window is not punished for a short past, and a
       client that was idle may use the bound of a whole window at once.
    2. In the long run, a client that waits for each delay uses at most `bound * samples /
       (samples - 1)` a second, unless single amounts are above a quarter of a window.
    3. At most `samples + 1` samples are kept.
    """

    __slots__ = ("_lengths", "_samples", "_total", "bound")

    def __init__(self, bound: float, lengths: WindowLengths) -> None:
        self.bound = bound
        self._lengths: Final = lengths
        self._samples: Final[deque[list[float]]] = deque()  # [start in ms, amount], oldest first
        self._total = 0.0

    def record(self, amount: float, now_ms: int) -> int:
        """Add an amount; return the delay in ms, 0 within the bound. Negative: take it back."""
        self._expire(now_ms)
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._lengths.sample_ms:
            samples.append([now_ms, 0.0])
        samples[-1][1] += amount
        self._total += amount
        return self.delay_ms(now_ms)

    def delay_ms(self, now_ms: int) -> int:
        """Return the time until the rate is down to the bound, in ms."""
        self._expire(now_ms)
        return max(0, round(self._total / self.bound * 1000 - self._elapsed_ms(now_ms)))

    def rate(self, now_ms: int) -> float:
        """Return the units a second."""
        self._expire(now_ms)
        return self._total / self._elapsed_ms(now_ms) * 1000

    def is_empty(self, now_ms: int) -> bool:
        """Whether nothing is recorded in the window."""
        self._expire(now_ms)
        return self._total <= 0

    def _expire(self, now_ms: int) -> None:
        samples = self._samples
        while samples and now_ms - samples[0][0] >= self._lengths.whole_ms:
            samples.popleft()
            # Summed anew, so that no error of rounding stays.
            self._total = sum(amount for _, amount in samples)

    def _elapsed_ms(self, now_ms: int) -> float:
        """Return the length of the window; each full sample that is missing counts as elapsed."""
        elapsed_ms = now_ms - self._samples[0][0] if self._samples else 0.0
        sample_ms = self._lengths.sample_ms
        missing = self._lengths.samples - 1 - int(elapsed_ms / sample_ms)
        return max(1, elapsed_ms + max(0, missing) * sample_ms)


class TokenBucket:
    """Tokens that flow in at `bound` a second, up to the bound of a whole window.

    A use is admitted while the bucket is not overdrawn, and may overdraw it.
    """

    __slots__ = ("_lengths", "_tokens", "_updated_ms", "bound")

    def __init__(self, bound: float, lengths: WindowLengths, now_ms: int) -> None:
        self.bound = bound
        self._lengths: Final = lengths
        self._tokens = bound * lengths.whole_ms / 1000
        self._updated_ms = now_ms

    def record(self, amount: float, now_ms: int) -> int:
        """Use tokens (negative: give them back); return the delay in ms until none is owed."""
        delay_ms = self.delay_ms(now_ms)  # the tokens up to now
        self._tokens -= amount
        return self.delay_ms(now_ms) if amount > 0 else delay_ms

    def delay_ms(self, now_ms: int) -> int:
        """Return the time until the bucket is not overdrawn, in ms; 0: it is not."""
        elapsed_ms, self._updated_ms = now_ms - self._updated_ms, now_ms
        full = self.bound * self._lengths.whole_ms / 1000
        self._tokens = min(full, self._tokens + self.bound * elapsed_ms / 1000)
        return max(0, round(-self._tokens / self.bound * 1000))

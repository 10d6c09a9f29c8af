"""Advances of a wall clock: tests advance it by days, so that old records and offsets expire."""

from collections.abc import Iterable
from typing import Final, NamedTuple

AHEAD_MS_MAX: Final = 100 * 365 * 86_400_000
"""The most that a clock may be ahead: timestamps stay far below the year 9999."""


class Advance(NamedTuple):
    """An advance by `by_ms`, when the machine's clock showed `at_ms` (since 1970)."""

    at_ms: int
    by_ms: int


class Advances:
    """The advances of one process's wall clock, the oldest first. None is ever taken back."""

    def __init__(self) -> None:
        self.made: tuple[Advance, ...] = ()
        self.ahead_ms = 0

    def extend(self, made: Iterable[Advance]) -> int:
        """Replace the advances by a list that continues them; return the ms of the move.

        Raises ValueError if the list does not continue them, and for an advance that is not above
        zero, or together above AHEAD_MS_MAX.
        """
        new = tuple(made)
        if new[: len(self.made)] != self.made:
            raise ValueError(f"the clock was advanced by {self.made}: it cannot go back to {new}")
        if any(one.by_ms <= 0 for one in new):
            raise ValueError(f"advances {new}: the clock goes only forwards, by 1 ms at least")
        ahead_ms = sum(one.by_ms for one in new)
        if ahead_ms > AHEAD_MS_MAX:
            raise ValueError(
                f"the clock cannot be more than {AHEAD_MS_MAX} ms (100 years) ahead, "
                f"and this would be {ahead_ms}"
            )
        moved_ms, self.made, self.ahead_ms = ahead_ms - self.ahead_ms, new, ahead_ms
        return moved_ms

"""The greatest of all things that happened before an event, found by bisection."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Greatest(Generic[T]):
    """The greatest of some things before an event. `event` and `rank` return when and how great."""

    def __init__(
        self, things: Iterable[T], *, event: Callable[[T], int], rank: Callable[[T], int]
    ) -> None:
        ordered = sorted(things, key=event)
        self._events: Final = [event(one) for one in ordered]
        self._greatest: Final[list[T]] = []
        for one in ordered:
            best = self._greatest[-1] if self._greatest else one
            self._greatest.append(one if rank(one) > rank(best) else best)

    def before(self, event: int) -> T | None:
        """Return the greatest thing of an earlier event, or None."""
        place = bisect_left(self._events, event)
        return self._greatest[place - 1] if place else None

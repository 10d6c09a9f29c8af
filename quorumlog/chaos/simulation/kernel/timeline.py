"""One heap and one clock: the future events of a run, in integer microseconds.

Nothing here depends on the order of a set, an address or a hash: equal pushes give equal runs.
"""

import heapq
from collections.abc import Callable
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.rules import Violation

EVENTS_AT_ONE_INSTANT_MAX: Final = 20_000
"""A correct run has at most a few hundred: more means that time will never go on."""


class Timeline:
    """The future events in order of time; those of the same time in order of `push`."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._pushed = 0

    def push(self, after_us: int, action: Callable[..., None], *arguments: object) -> None:
        """Call `action` after so many microseconds."""
        self._pushed += 1
        heapq.heappush(self._heap, (self.now_us + after_us, self._pushed, action, arguments))

    def run(self) -> None:
        """Run until no event is left.

        Raises what an action raises, and Violation if the events of one instant do not end: the
        processes then keep each other, or themselves, busy for ever.
        """
        heap, pop = self._heap, heapq.heappop
        first_of_instant = self.events
        while heap:
            at_us, _, action, arguments = pop(heap)
            if at_us != self.now_us:
                self.now_us, first_of_instant = at_us, self.events
            elif self.events - first_of_instant > EVENTS_AT_ONE_INSTANT_MAX:
                raise Violation(
                    f"progress: more than {EVENTS_AT_ONE_INSTANT_MAX} events at {at_us / 1000} ms"
                )
            self.events += 1
            action(*arguments)

    def stop(self) -> None:
        """Forget all that is to happen: the run ends."""
        self._heap.clear()

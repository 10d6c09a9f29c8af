"""One timer of the event loop for all entries of one purgatory."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from quorumlog.clock import monotonic_ms


class HasDeadlines(Protocol):
    """The deadlines of a purgatory."""

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline; None: no entry waits."""


class DeadlineTimer:
    """Calls `expire(now_ms)` at or after each deadline; one call too many is harmless."""

    def __init__(self, deadlines: HasDeadlines, expire: Callable[[int], None]) -> None:
        self._deadlines: Final = deadlines
        self._expire: Final = expire
        self._handle: asyncio.Handle | None = None
        self._rings_at_s = 0.0  # kept here: uvloop's handle of a timer that is due has no `when`

    def arm(self, deadline_ms: int) -> None:
        """Ring at `deadline_ms`, or before. Cheap if the timer is already set to ring before."""
        when_s = deadline_ms / 1000 + 0.001  # never before the whole millisecond has come
        if self._handle is not None:
            if self._rings_at_s <= when_s:
                return
            self._handle.cancel()
        self._rings_at_s = when_s
        self._handle = asyncio.get_running_loop().call_at(when_s, self._ring)

    def stop(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._expire(monotonic_ms())
        deadline_ms = self._deadlines.next_deadline_ms()
        if deadline_ms is not None:
            self.arm(deadline_ms)

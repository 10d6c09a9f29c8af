"""Limits the time that the requests of all connections use in one turn of the event loop.

In one turn, the loop calls every connection that has received bytes, one after the other. When
thousands of members join groups at once, that is seconds of work: a broker that sends no heartbeat
for so long loses its session, and leads no partition any more.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.02


class Turns:
    """The turns of one broker. A connection whose turn is over waits in line for the next one.

    Invariant: waiting connections continue before others, in the order of their arrival.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._ends_s = 0.0
        self._waiting: Final[deque[Callable[[], None]]] = deque()

    def is_over(self, now_s: float) -> bool:
        """Whether requests have used the time of this turn of the loop."""
        if not self._is_open:
            self._is_open, self._ends_s = True, now_s + TURN_S
            asyncio.get_running_loop().call_soon(self._next)
        return now_s >= self._ends_s

    def may_continue(self) -> bool:
        """Whether this turn has time for another request."""
        return not self.is_over(asyncio.get_running_loop().time())

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` in one of the next turns; if that is over, too, it waits again."""
        self._waiting.append(resume)

    def _next(self) -> None:
        """Begin another turn with the waiting connections: at least one of them continues."""
        self._is_open = False
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        self.is_over(loop.time())
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if loop.time() >= self._ends_s:
                return

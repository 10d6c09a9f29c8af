"""How long the requests of all connections together hold up the event loop, turn by turn.

The loop calls every connection that has received something, one after the other, in one turn. When
thousands of members join groups at once, that is seconds of work: a broker that is silent for so
long loses its session, and with it all that it leads.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.02


class Turns:
    """Those of one broker. A connection whose turn is over waits in line for the next one.

    Invariant: what waits goes on before anything else is asked, in the order in which it came.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._ends_s = 0.0
        self._waiting: Final[deque[Callable[[], None]]] = deque()

    def is_over(self, now_s: float) -> bool:
        """Whether requests have had their time in this turn of the loop."""
        if not self._is_open:
            self._is_open, self._ends_s = True, now_s + TURN_S
            asyncio.get_running_loop().call_soon(self._next)
        return now_s >= self._ends_s

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in one of the next turns; it waits again if that is over, too."""
        self._waiting.append(go_on)

    def _next(self) -> None:
        """Begin another turn with those that wait: at least one of them goes on."""
        self._is_open = False
        if not self._waiting:
            return
        loop = asyncio.get_running_loop()
        self.is_over(loop.time())
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if loop.time() >= self._ends_s:
                return

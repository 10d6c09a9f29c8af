"""An event loop without waiting: where nothing is left to do, the next timer is due at once.

A test asks for it with `@pytest.mark.jumping_time`. It is of no use where sockets, threads or
processes do the work: the loop would not wait for them, but time out.
"""

import asyncio
import heapq
from typing import Any


class JumpingLoop(asyncio.SelectorEventLoop):
    """Where nothing is left to do, it is at once the time of the next timer."""

    now_s = 0.0
    _ready: Any
    _scheduled: Any
    _timer_cancelled_count: int

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready and self._scheduled:
            self.now_s = max(self.now_s, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]  # asyncio's own

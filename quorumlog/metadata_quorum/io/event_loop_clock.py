"""The clock of a driver in a process: the event loop's time and the system's."""

import asyncio
from collections.abc import Callable

from quorumlog.clock import wall_clock_ms


class EventLoopClock:
    """Use it in a running loop."""

    @staticmethod
    def now_ms() -> int:
        """Return the loop's monotonic time, rounded down."""
        return int(asyncio.get_running_loop().time() * 1000)

    @staticmethod
    def wall_ms() -> int:
        """Return the time since 1970."""
        return wall_clock_ms()

    @staticmethod
    def call_at(time_ms: int, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `action` 1 ms late, so that `now_ms` has reached `time_ms` for certain."""
        return asyncio.get_running_loop().call_at((time_ms + 1) / 1000, action)

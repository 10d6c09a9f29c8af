"""The two clocks. By convention, `now_ms` is monotonic, and `wall_ms` is not.

A simulation replaces `wall_ns`, for the whole process.
"""

import asyncio
import time
from collections.abc import Callable

wall_ns: Callable[[], int] = time.time_ns
monotonic_s: Callable[[], float] = time.monotonic
"""The event loop's clock, exact also within one turn of uvloop. For measurements alone: a simulated
loop has its own time."""


def monotonic_ms() -> int:
    """Return the event loop's clock in ms: the `now_ms` of the cores, deadlines and back-offs."""
    return int(asyncio.get_running_loop().time() * 1000)


def thread_cpu_s() -> float:
    """Return the CPU seconds that the calling thread has used."""
    return time.thread_time()


def wall_clock_ms() -> int:
    """Return the ms since 1970: for timestamps of records, and times compared with them."""
    return wall_ns() // 1_000_000

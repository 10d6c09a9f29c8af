"""The two clocks. By convention, `now_ms` is monotonic, and `wall_ms` is not.

A simulation replaces `wall_ns`, `busy_s` and `advances`, for the whole process. The wall clock of a
node may be ahead of its machine's: tests advance it by days, so that old records and offsets
expire. Sessions, elections and the timeouts of requests go by the monotonic clock, which never
jumps.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from quorumlog.advances import Advances

wall_ns: Callable[[], int] = time.time_ns
monotonic_s: Callable[[], float] = time.monotonic
"""The event loop's clock, exact also within one turn of uvloop. For measurements alone: a simulated
loop has its own time."""

busy_s: Callable[[], float] = time.perf_counter
"""Read before and after work in the event loop, to count its seconds against a quota."""

_of_this_process: Final = Advances()


def _own_advances() -> Advances:
    return _of_this_process


advances: Callable[[], Advances] = _own_advances
"""Return the advances of the running process."""


def monotonic_ms() -> int:
    """Return the event loop's clock in ms: the `now_ms` of the cores, deadlines and back-offs."""
    return int(asyncio.get_running_loop().time() * 1000)


def thread_cpu_s() -> float:
    """Return the CPU seconds that the calling thread has used."""
    return time.thread_time()


def machine_clock_ms() -> int:
    """Return the machine's ms since 1970, without advances: the clock of clients and of files."""
    return wall_ns() // 1_000_000


def wall_clock_ms() -> int:
    """Return the ms since 1970: for timestamps of records, and times compared with them."""
    return machine_clock_ms() + advances().ahead_ms

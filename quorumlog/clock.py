"""The two clocks. By convention, `now_ms` is monotonic, and `wall_ms` is not.

A simulation replaces `wall_ns` and `advances`, for the whole process. The wall clock of a node may
be ahead of its machine's: tests advance it by days, so that old records and offsets expire.
Sessions, elections and the timeouts of requests go by the monotonic clock, which never jumps.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from quorumlog.advances import Advances

wall_ns: Callable[[], int] = time.time_ns

_of_this_process: Final = Advances()


def _own_advances() -> Advances:
    return _of_this_process


advances: Callable[[], Advances] = _own_advances
"""Return the advances of the running process."""


def monotonic_ms() -> int:
    """Return the event loop's clock in ms: the `now_ms` of the cores, deadlines and back-offs."""
    return int(asyncio.get_running_loop().time() * 1000)


def machine_clock_ms() -> int:
    """Return the machine's ms since 1970, without advances: the clock of clients and of files."""
    return wall_ns() // 1_000_000


def wall_clock_ms() -> int:
    """Return the ms since 1970: for timestamps of records, and times compared with them."""
    return machine_clock_ms() + advances().ahead_ms

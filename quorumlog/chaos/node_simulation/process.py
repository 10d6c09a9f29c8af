"""Simulated processes, which own asyncio's callbacks, and their clocks."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, Final

from quorumlog.advances import Advances


class Clock:
    """A monotonic clock that may run fast or slow, and the offset of a machine's wall clock."""

    def __init__(self, wall_offset_ns: int = 0) -> None:
        self.wall_offset_ns = wall_offset_ns
        self.is_true = True
        self._rate = 1.0
        self._true_s = self._local_s = 0.0  # when the rate was set

    def set_rate(self, rate: float, now_s: float) -> None:
        """Run at `rate` local seconds per second from `now_s` on. The clock does not jump."""
        self._local_s, self._true_s = self.local_s(now_s), now_s
        self._rate = rate
        self.is_true = False

    def local_s(self, now_s: float) -> float:
        """Return the clock's time at a true time."""
        return now_s if self.is_true else self._local_s + (now_s - self._true_s) * self._rate

    def true_s(self, local_s: float) -> float:
        """Return the true time at which the clock shows `local_s`, at its current rate."""
        return local_s if self.is_true else self._true_s + (local_s - self._local_s) / self._rate


class Process:
    """One process on a machine. A restart makes a new one.

    Invariants:
      1. After its death none of its callbacks runs, nor any `finally` or `except CancelledError`.
      2. While it is paused, or lacks a CPU, its callbacks wait in `backlog`, in order of their
         due times.
    """

    def __init__(self, name: str, host: str, clock: Clock) -> None:
        self.name: Final = name
        self.host: Final = host
        self.clock: Final = clock
        self.advances: Final = Advances()  # of its wall clock
        self.is_alive = True
        self.is_paused = False
        self.lacks_cpu = False
        self.newest_callback = 0  # its number in the run: no other code changes the process
        self.backlog: Final = deque[Any]()
        self.pools: Final[dict[Any, ThreadPool]] = {}
        self.after_work: Callable[[], float] = lambda: 0.0  # the time of its disk calls, in s
        self.failed: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    @property
    def runs(self) -> bool:
        """True if its callbacks run now."""
        return self.is_alive and not (self.is_paused or self.lacks_cpu)

    def begins(self, callback: Any, number: int) -> bool:
        """Whether the process runs this due callback; else it keeps it for later, or drops it."""
        if self.is_alive and not (self.is_paused or self.lacks_cpu):
            self.newest_callback = number
            return True
        if self.is_alive:
            self.backlog.append(callback)
        return False


class ThreadPool:
    """The threads of an executor: at most `size` calls at a time, begun in their order."""

    def __init__(self, size: int) -> None:
        self.free = size
        self.waiting: Final = deque[Callable[[], None]]()


OWNER: Final[ContextVar[Process | None]] = ContextVar("owner", default=None)
"""The process that owns the running callback; None: the network and the nemesis."""

KERNEL: Final = Context()
"""The context of work that no process owns; it never stops."""

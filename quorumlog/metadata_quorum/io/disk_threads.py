"""The threads in which a metadata quorum waits for its disk.

They are its own: a vote that shares threads with the flushes of data partitions waits behind them,
and a late vote is an election more.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

THREADS: Final = 2  # a flush of the log, and a write that must not wait for it

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DiskThreads:
    """Two threads. `close` it."""

    def __init__(self) -> None:
        self._pool: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="quorum-disk")

    async def run(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run `work` in a thread and return its result. Raises what it raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Take no more work; what is under way goes on to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

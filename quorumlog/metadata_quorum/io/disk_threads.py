"""The threads in which a metadata quorum waits for its disk.

The quorum has its own: a vote that shares threads with the flushes of data partitions waits behind
them, and a late vote costs another election.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from quorumlog.tasks import OnError, Tasks

# A flush of the log, a write that must not wait for it, the write of a snapshot, the check of a
# snapshot, and a read for a follower's snapshot fetch.
THREADS: Final = 5

T = TypeVar("T")


class DiskThreads:
    """An `Executor` of a few threads. `on_error` is called for work that raises. `close` it."""

    def __init__(self, on_error: OnError) -> None:
        self._tasks: Final = Tasks(on_error)
        self._pool: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="quorum-disk")

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` in a thread, then call `done` with its result in the event loop."""
        self._tasks.start(self._run(work, done))

    async def _run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        done(await asyncio.get_running_loop().run_in_executor(self._pool, work))

    async def close(self) -> None:
        """Wait until all work in progress has ended: only then may files be closed."""
        await self._tasks.join()
        self._pool.shutdown(wait=False)

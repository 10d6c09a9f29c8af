"""A thread for jobs too long for the event loop: large targets, topic names to match.

docs/decisions/0032-group-threads.md
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from quorumlog.invariants import InvariantViolation

T = TypeVar("T")


class JobThread:
    """One thread for all groups of a broker: its jobs run one after the other."""

    def __init__(self, name: str, on_fatal: Callable[[InvariantViolation], None]) -> None:
        """`on_fatal` gets an InvariantViolation when a job raises."""
        self._name: Final = name
        self._on_fatal: Final = on_fatal
        self._executor: ThreadPoolExecutor | None = None
        self._is_stopped = False

    def perform(self, run: Callable[[], T], done: Callable[[T], None], what: str) -> None:
        """Run the job in the thread, then call `done` with its result in the event loop."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        running = asyncio.get_running_loop().run_in_executor(self._executor, run)

        def ended(running: asyncio.Future[T]) -> None:
            if self._is_stopped or running.cancelled():
                return
            error = running.exception()
            if error is None:
                done(running.result())
            else:
                self._on_fatal(InvariantViolation(f"{what}: {error!r}"))

        running.add_done_callback(ended)

    def stop(self) -> None:
        """Cancel waiting jobs; drop the result of the running job."""
        self._is_stopped = True
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

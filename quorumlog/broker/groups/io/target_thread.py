"""The thread that makes large targets of consumer groups.

docs/decisions/0129-a-large-target-is-made-outside-of-the-step.md
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from quorumlog.broker.groups.core.consumer.assignors import Assignment
from quorumlog.broker.groups.core.effects import MakeTarget
from quorumlog.broker.groups.core.events import TargetMade
from quorumlog.invariants import InvariantViolation


class TargetThread:
    """One thread for all groups of a broker: targets are made one after the other."""

    def __init__(self, on_fatal: Callable[[InvariantViolation], None]) -> None:
        """`on_fatal` gets our bugs."""
        self._on_fatal: Final = on_fatal
        self._executor: ThreadPoolExecutor | None = None
        self._is_stopped = False

    def perform(self, effect: MakeTarget, feed: Callable[[TargetMade], None]) -> None:
        """Run the job in the thread, then feed TargetMade in the event loop."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="group-targets")
        job = effect.job
        made = asyncio.get_running_loop().run_in_executor(self._executor, job.run)

        def done(made: asyncio.Future[Assignment]) -> None:
            if self._is_stopped or made.cancelled():
                return
            error = made.exception()
            if error is None:
                feed(TargetMade(job=job, target=made.result()))
            else:
                self._on_fatal(InvariantViolation(f"the target of {job.group_id}: {error!r}"))

        made.add_done_callback(done)

    def stop(self) -> None:
        """Feed nothing from now on."""
        self._is_stopped = True
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

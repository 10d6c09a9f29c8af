"""Background tasks with an owner: kept alive, ended together, every failure reported."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")
OnError = Callable[[BaseException], None]


class Tasks:
    """The tasks of one owner.

    1. A task is referenced until it ends: the event loop itself keeps only a weak reference.
    2. `on_error` is called once for each task that raises any error; a cancellation is no failure.
       It runs in the event loop, when the task has ended.
    3. No task is left after `stop`, except its caller. `stop` cancels them in the order of their
       starts.
    """

    def __init__(self, on_error: OnError) -> None:
        self._on_error: Final = on_error
        self._running: Final[dict[asyncio.Task[Any], None]] = {}  # in the order of their starts

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in the background. The caller may cancel or await the task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel every task and wait until each has ended."""
        while others := self._others():
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    async def join(self) -> None:
        """Wait until every task has ended by itself."""
        while others := self._others():
            await asyncio.wait(others)

    async def join_first(self) -> None:
        """Wait until one of the tasks has ended by itself."""
        if others := self._others():
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)

    def _others(self) -> list[asyncio.Task[Any]]:
        caller = asyncio.current_task()
        return [task for task in self._running if task is not caller]

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._on_error(error)


def log_failure(logger: logging.Logger, what: str) -> OnError:
    """Return an `on_error` that logs the failure with its traceback, for unawaited work."""

    def log(error: BaseException) -> None:
        logger.error("%s failed: %s", what, error, exc_info=error)

    return log

"""A thread for a library whose calls block."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")
_Job = Callable[[], None]


class Worker:
    """One thread for one client, so that one caller at a time uses it.

    The thread is a daemon: a library call that never returns keeps neither the run nor the
    interpreter from ending. A cancelled caller leaves the call to the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._jobs: Final[SimpleQueue[_Job | None]] = SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    async def call(self, work: Callable[[], _Result]) -> _Result:
        """Return the result of `work`, in its turn, or raise its exception."""
        done: asyncio.Future[_Result] = self._loop.create_future()

        def job() -> None:
            if done.cancelled():  # cancelled before its turn
                return
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - raised to the caller, in another thread
                self._tell(_fail, done, error)
            else:
                self._tell(_succeed, done, result)

        self._jobs.put(job)
        return await done

    def close(self) -> None:
        """End the thread after the queued calls."""
        self._jobs.put(None)

    def _tell(self, settle: Callable[..., None], done: asyncio.Future[Any], what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is waiting
            self._loop.call_soon_threadsafe(settle, done, what)


def _succeed(done: asyncio.Future[Any], result: object) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)

"""A thread for a library whose calls block."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")
_Job = Callable[[], None]


def settled_elsewhere() -> tuple[
    asyncio.Future[Any], Callable[[object, BaseException | None], None]
]:
    """Return a future of the running loop, and a function by which another thread settles it.

    The function takes the result and the exception; the result counts if the exception is None.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: object, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def settle_in_loop(result: object, error: BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is waiting
            loop.call_soon_threadsafe(settle, result, error)

    return done, settle_in_loop


class Worker:
    """One thread for one client, so that one caller at a time uses it.

    The thread is a daemon: a library call that never returns keeps neither the run nor the
    interpreter from ending. A cancelled caller leaves the call to the thread.
    """

    def __init__(self, name: str) -> None:
        self._jobs: Final[SimpleQueue[_Job | None]] = SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    async def call(self, work: Callable[[], _Result]) -> _Result:
        """Return the result of `work`, in its turn, or raise its exception."""
        done, settle = settled_elsewhere()

        def job() -> None:
            if done.cancelled():  # cancelled before its turn
                return
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - raised to the caller, in another thread
                settle(None, error)
            else:
                settle(result, None)

        self._jobs.put(job)
        result: _Result = await done
        return result

    def close(self) -> None:
        """End the thread after the queued calls."""
        self._jobs.put(None)

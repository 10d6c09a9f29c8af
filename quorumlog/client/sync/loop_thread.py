"""The thread whose event loop the blocking clients share."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, ClassVar, Final, TypeVar

Result = TypeVar("Result")


async def _cancelled(tasks: set["asyncio.Task[Any]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class LoopThread:
    """An event loop in a thread of its own. `users` counts the open clients."""

    shared: ClassVar["LoopThread | None"] = None
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.users = 0
        self._process: Final = os.getpid()
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(
            target=self._serve, name="quorumlog-client", daemon=True
        )
        self._thread.start()

    def _serve(self) -> None:
        self._loop.run_forever()
        # A client whose end was interrupted leaves some.
        self._loop.run_until_complete(_cancelled(asyncio.all_tasks(self._loop)))
        self._loop.close()

    @classmethod
    def acquire(cls) -> "LoopThread":
        """Return the shared one; start it if there is none."""
        with cls.lock:
            if cls.shared is None:
                cls.shared = cls()
            cls.shared.users += 1
            return cls.shared

    @property
    def is_here(self) -> bool:
        """False in a process that was forked off: the thread stayed behind."""
        return self._process == os.getpid()

    def release(self) -> None:
        """Say that one client is closed; the last one ends the thread."""
        with self.lock:
            self.users -= 1
            if self.users:
                return
            type(self).shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:  # as when it closed a dropped client
            self._thread.join()

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run `work` on the loop; do not wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def check_caller(self, work: Coroutine[Any, Any, Any]) -> None:
        """Raise RuntimeError if the loop that would do `work` is not there, or is the caller's."""
        if not self.is_here:
            work.close()
            message = "this client was opened before a fork: open one in this process"
            raise RuntimeError(message)
        if threading.current_thread() is self._thread:
            work.close()
            message = (
                "this code runs on the clients' own event loop, where a blocking call would wait"
                " for itself (in a RebalanceListener, say): use the asynchronous client there"
            )
            raise RuntimeError(message)

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """Run `work` on the loop and wait for it. Raises TimeoutError, and then cancels it."""
        self.check_caller(work)
        future = self.begin(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise


def _after_fork() -> None:
    """Begin without a thread; another one may have held the lock at that moment."""
    LoopThread.shared, LoopThread.lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)

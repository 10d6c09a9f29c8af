"""The thread whose event loop the blocking clients share.

A caller may be interrupted at any moment (Ctrl-C, an exception of a signal handler). Its call is
then cancelled, and has ended before the exception leaves `run`: the next call finds the client
idle. A signal handler may close clients, so the locks are reentrant.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ClassVar, Final, Generic, TypeVar

Result = TypeVar("Result")
Calls = set["asyncio.Task[Any]"]

CLOSED: Final = "the client is closed"
CANCEL_S: Final = 5.0  # the longest wait for a cancelled call, which may run a user's listener
_LOOK_S: Final = 1.0  # how often a caller checks that the thread is alive


async def cancel(calls: Calls) -> None:
    """Cancel these tasks, and wait until they have ended."""
    own = [*calls]
    for call in own:
        call.cancel()
    await asyncio.gather(*own, return_exceptions=True)


async def _cancel_all() -> None:
    """Cancel all other tasks, also those that begin meanwhile."""
    this = {asyncio.current_task()}
    while others := asyncio.all_tasks() - this:
        await cancel(others)


class _Call(Generic[Result]):
    """A coroutine that runs on the loop for a caller in another thread.

    Invariants:
      1. The loop waits for no lock that a caller may hold: an interrupted caller cannot block it.
      2. `calls` changes on the loop only; it has the task while the task runs.
    """

    def __init__(self, work: Coroutine[Any, Any, Result], calls: Calls) -> None:
        self._work: Final = work
        self._calls: Final = calls
        self._task: asyncio.Task[Result] | None = None
        self._is_over = False
        self._over: Final = threading.Lock()  # held until the task is over
        self._over.acquire()

    # --- on the loop ---

    def start(self) -> None:
        if not self._is_over:
            self._task = asyncio.get_running_loop().create_task(self._work)
            self._calls.add(self._task)
            self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._is_over:
            self._work.close()
            self._end(None)

    def _end(self, task: "asyncio.Task[Result] | None") -> None:
        if task is not None:
            self._calls.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved, else asyncio logs it if the caller is gone
        self._is_over = True
        self._over.release()

    # --- in the caller's thread ---

    def wait(self, timeout_s: float) -> bool:
        """Wait for at most `timeout_s`; return whether the call has ended."""
        return self._is_over or self._over.acquire(timeout=max(0.0, timeout_s))

    def result(self) -> Result:
        """Return the result of an ended call. Raises RuntimeError if closing has cancelled it."""
        try:
            if self._task is None or self._task.cancelled():
                raise RuntimeError(CLOSED)
            return self._task.result()
        finally:
            del self  # breaks the cycle of the error, its frame and the task that has the error


class LoopThread:
    """An event loop in a thread of its own. `users`: the open clients."""

    shared: ClassVar["LoopThread | None"] = None
    lock: ClassVar["threading.RLock"] = threading.RLock()

    def __init__(self) -> None:
        self.users: Final[set[object]] = set()
        self._process: Final = os.getpid()
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(
            target=self._serve, name="quorumlog-client", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:  # the thread may run nevertheless
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    def _serve(self) -> None:
        self._loop.run_forever()
        # A client whose closing was interrupted leaves tasks.
        self._loop.run_until_complete(_cancel_all())
        self._loop.close()

    @classmethod
    def acquire(cls, user: object) -> "LoopThread":
        """Return the shared loop thread, for `user`; start it if there is none."""
        with cls.lock:
            if cls.shared is None:
                cls.shared = cls()
            cls.shared.users.add(user)
            return cls.shared

    @classmethod
    def release_shared(cls, user: object) -> None:
        """Undo `acquire`, even if it was interrupted half-way."""
        if cls.shared is not None:
            cls.shared.release(user)

    @property
    def is_here(self) -> bool:
        """False in a forked process, which does not have the thread."""
        return self._process == os.getpid()

    def may_be_called(self) -> bool:
        """Return False after a fork, in the loop's thread, and after the last client's close."""
        return LoopThread.shared is self and threading.get_ident() != self._thread.ident

    def release(self, user: object) -> None:
        """Remove a closed client; the last client ends the thread. May be repeated."""
        with self.lock:
            self.users.discard(user)
            if self.users:
                return
            if self.shared is self:
                type(self).shared = None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:  # it closes dropped clients
            self._thread.join()

    def begin(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Start `work` on the loop, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def check_caller(self, work: Coroutine[Any, Any, Any]) -> None:
        """Close `work` and raise RuntimeError after a fork, or in the loop's own thread."""
        if not self.is_here:
            work.close()
            message = "this client was opened before a fork: open one in this process"
            raise RuntimeError(message)
        if threading.current_thread() is self._thread:
            work.close()
            message = (
                "a blocking call on the clients' own event loop (as in a RebalanceListener) would"
                " wait for itself: use the asynchronous client there"
            )
            raise RuntimeError(message)

    def run(
        self,
        work: Coroutine[Any, Any, Result],
        timeout_s: float | None = None,
        calls: Calls | None = None,
    ) -> Result:
        """Run `work` on the loop and wait for it; cancel it and raise TimeoutError if it is late.

        `calls` has the task while it runs. Raises RuntimeError if closing the client has cancelled
        the task. After an exception in the caller's thread, `work` has ended, or `CANCEL_S` have
        passed.
        """
        self.check_caller(work)
        call = _Call(work, set() if calls is None else calls)
        try:
            self._loop.call_soon_threadsafe(call.start)
            self._wait(call, timeout_s)
        except BaseException:
            self._give_up(call)
            raise
        return call.result()

    def _wait(self, call: _Call[Any], timeout_s: float | None) -> None:
        end_s = float("inf") if timeout_s is None else self._loop.time() + timeout_s
        while not call.wait(min(_LOOK_S, end_s - self._loop.time())):
            if self._loop.time() >= end_s:
                raise TimeoutError
            if not self._thread.is_alive():
                raise RuntimeError(CLOSED)

    def _give_up(self, call: _Call[Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(call.cancel)
        except RuntimeError:  # the loop is closed: its tasks have ended
            call.cancel()
        call.wait(CANCEL_S)


def _after_fork() -> None:
    """Reset the shared thread and its lock, which another thread may have held during the fork."""
    LoopThread.shared, LoopThread.lock = None, threading.RLock()


os.register_at_fork(after_in_child=_after_fork)

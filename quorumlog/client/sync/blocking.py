"""The common part of the blocking clients: their methods, and how they open, close and end.

A method is made of the asynchronous one, with its signature and its description.

A client that is dropped without `close` is closed in the background. One that is still open when
the interpreter ends is closed then if it may hold records: a producer waits, as in `close`, until
each of them is acknowledged or failed, `delivery_timeout_ms` at most. Both are ResourceWarnings.
"""

import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import wraps
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from quorumlog.client.async_client import AsyncClient
from quorumlog.client.io.closing import close_all
from quorumlog.client.sync.loop_thread import CLOSED, Calls, LoopThread, cancel

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_open: Final["weakref.WeakSet[Blocking[Any]]"] = weakref.WeakSet()
_closing: Final[set["Future[None]"]] = set()  # of those that were dropped


ClientT = TypeVar("ClientT", bound=AsyncClient[Any])
OwnerT = TypeVar("OwnerT")


class Waiting(Generic[OwnerT]):
    """Has methods of an asynchronous object, in a form that waits for their end."""

    def __init__(self, owner: OwnerT) -> None:
        """`owner` has the asynchronous methods."""
        self._client: Final = owner

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        raise NotImplementedError


class Part(Waiting[OwnerT]):
    """Some of a client's methods, under a name of their own."""

    def __init__(self, owner: OwnerT, client: "Blocking[Any]") -> None:
        """`owner` has the asynchronous methods; `client` runs them."""
        super().__init__(owner)
        self._whole: Final = client

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._whole._run(work)  # noqa: SLF001 - ours: the class is below


class Blocking(Waiting[ClientT]):
    """The common part of the three: opened at construction, closed by `close` or `with`."""

    _holds_records: ClassVar[bool] = False

    def __init__(self, client: ClientT) -> None:
        super().__init__(client)
        self._is_open = True
        self._calls: Final[Calls] = set()  # those under way
        self._lock: Final = threading.RLock()
        try:
            loop = LoopThread.acquire(client)
            drop = weakref.finalize(self, _drop, type(self).__name__, client, loop)
            drop.atexit = False  # `_at_exit` closes it
        except BaseException:
            LoopThread.release_shared(client)
            raise
        self._loop: Final = loop
        self._drop: Final = drop
        try:
            self._run(client.start())
            _open.add(self)
        except BaseException:
            self._close(client.stop())
            raise

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if not self._is_open:
            work.close()
            raise RuntimeError(CLOSED)
        try:
            return self._loop.run(work, calls=self._calls)
        except RuntimeError as error:
            if self._is_open:
                raise
            # Another thread, or a signal handler, has closed it meanwhile.
            raise RuntimeError(CLOSED) from error

    def close(self) -> None:
        """Close in good order; see the asynchronous client's `stop`.

        Calls that still run in other threads then raise RuntimeError. A caller that is interrupted
        (Ctrl-C) does not wait for the end, which comes in the background.
        """
        self._close(self._client.stop())

    def _close(self, stop: Coroutine[Any, Any, None]) -> None:
        if not self._loop.is_here:  # what it had belongs to the process that forked this one
            stop.close()
            return
        self._loop.check_caller(stop)
        was_open = False
        try:
            with self._lock:
                was_open, self._is_open = self._is_open, False
            if not was_open:
                stop.close()
                return
            self._drop.detach()
            _open.discard(self)
            self._loop.run(close_all(lambda: stop))  # goes on without a caller that is interrupted
            self._loop.run(cancel(self._calls))
            self._loop.release(self._client)
        except BaseException:
            if was_open:
                self._is_open = False
                self._drop.detach()
                _open.discard(self)
                _begin_closing(self._client, self._loop)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.close()
        else:
            self._close(self._client.__aexit__(exc_type, exc, traceback))


def blocking(
    method: Callable[Concatenate[OwnerT, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Waiting[OwnerT], Parameters], Result]:
    """Return the method of a blocking client that awaits `method` on the shared loop."""

    @wraps(method)
    def call(
        self: Waiting[OwnerT], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        return self._run(method(self._client, *args, **kwargs))

    return call


def on_loop(
    method: Callable[Concatenate[ClientT, Parameters], Result],
) -> Callable[Concatenate[Blocking[ClientT], Parameters], Result]:
    """Return the method of a blocking client that calls `method` on the shared loop."""

    @wraps(method)
    def call(
        self: Blocking[ClientT], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        async def work() -> Result:
            return method(self._client, *args, **kwargs)

        return self._run(work())

    return call


def _warn(kind: str) -> None:
    warnings.warn(f"unclosed {kind}: use `with`, or close()", ResourceWarning, stacklevel=3)


def _drop(kind: str, client: AsyncClient[Any], loop: LoopThread) -> None:
    """Close, in the background, a client whose outside no code holds any more."""
    if loop.is_here:
        _begin_closing(client, loop)
        _warn(kind)


def _begin_closing(client: AsyncClient[Any], loop: LoopThread) -> None:
    work = _close_dropped(client, loop)
    try:
        future = loop.begin(work)
    except RuntimeError:  # the loop has ended, as this was the last client, and is closed
        work.close()
        return
    _closing.add(future)
    future.add_done_callback(_closing.discard)


async def _close_dropped(client: AsyncClient[Any], loop: LoopThread) -> None:
    try:
        # As after an exception: what the last poll returned need not be processed.
        await client.__aexit__(GeneratorExit, None, None)
    finally:
        loop.release(client)


def _at_exit() -> None:
    """Close the producers that are still open: it waits until their records are done."""
    for client in list(_open):
        if client._loop.is_here:  # noqa: SLF001 - ours: the class is above
            _warn(type(client).__name__)
            if client._holds_records:  # noqa: SLF001 - ours, too
                client.close()
    wait([*_closing])


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_closing.clear)  # the parent closes them

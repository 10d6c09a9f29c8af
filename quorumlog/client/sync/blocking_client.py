"""The common part of the blocking clients: their methods, and how they open and close.

`blocking` derives a method from the asynchronous method, with its signature and its docstring.

A client that is dropped without `close` is closed in the background. A producer that is still open
when the interpreter ends is closed then: it waits, as in `close`, until each record is acknowledged
or failed, for at most `delivery_timeout_ms`. Both cases give a ResourceWarning.
"""

import atexit
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import wraps
from typing import Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from quorumlog.client.async_client import AsyncClient
from quorumlog.client.io.closing import close_all
from quorumlog.client.sync.loop_thread import CLOSED, Calls, LoopThread, cancel

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_open: Final["weakref.WeakSet[Blocking[Any]]"] = weakref.WeakSet()
_closing: Final[set["Future[None]"]] = set()  # of dropped clients


ClientT = TypeVar("ClientT", bound=AsyncClient[Any])
OwnerT = TypeVar("OwnerT")


class Waiting(Generic[OwnerT]):
    """Blocking forms of the methods of an asynchronous object."""

    def __init__(self, owner: OwnerT) -> None:
        """`owner` has the asynchronous methods."""
        self._client: Final = owner

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        raise NotImplementedError


class Part(Waiting[OwnerT]):
    """A part of a client's methods, as an object of its own."""

    def __init__(self, owner: OwnerT, client: "Blocking[Any]") -> None:
        """`owner` has the asynchronous methods; `client` runs them."""
        super().__init__(owner)
        self._whole: Final = client

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._whole._run(work)  # noqa: SLF001 - ours: the class is below


class Blocking(Waiting[ClientT]):
    """The base of the blocking clients: opened at construction, closed by `close` or `with`."""

    _holds_records: ClassVar[bool] = False

    def __init__(self, client: ClientT) -> None:
        super().__init__(client)
        self._is_open = True
        self._calls: Final[Calls] = set()  # in progress
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
            # Another thread, or a signal handler, has closed the client meanwhile.
            raise RuntimeError(CLOSED) from error

    def close(self) -> None:
        """Close the client; see the asynchronous client's `stop`.

        Calls in progress in other threads raise RuntimeError. If the caller is interrupted
        (Ctrl-C), closing continues in the background.
        """
        self._close(self._client.stop())

    def _close(self, stop: Coroutine[Any, Any, None]) -> None:
        if not self._loop.is_here:  # its connections belong to the parent of this forked process
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
            self._loop.run(close_all(lambda: stop))  # continues if the caller is interrupted
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

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self._close(self._client.__aexit__(exc_type, *exc))


def blocking(
    method: Callable[Concatenate[OwnerT, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Waiting[OwnerT], Parameters], Result]:
    """Return a method of a blocking client that awaits `method` on the shared loop."""

    @wraps(method)
    def call(
        self: Waiting[OwnerT], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        return self._run(method(self._client, *args, **kwargs))

    return call


def on_loop(
    method: Callable[Concatenate[ClientT, Parameters], Result],
) -> Callable[Concatenate[Blocking[ClientT], Parameters], Result]:
    """Return a method of a blocking client that calls `method` on the shared loop."""

    @wraps(method)
    def call(
        self: Blocking[ClientT], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        async def work() -> Result:
            return method(self._client, *args, **kwargs)

        return self._run(work())

    return call


def client_of(client: Blocking[ClientT]) -> ClientT:
    """Return the asynchronous client."""
    return client._client  # noqa: SLF001 - ours: the class is above


def run(client: Blocking[Any], work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` on the shared loop, as a call of the client."""
    return client._run(work)  # noqa: SLF001 - ours, too


def _warn(kind: str) -> None:
    warnings.warn(f"unclosed {kind}: use `with`, or close()", ResourceWarning, stacklevel=3)


def _drop(kind: str, client: AsyncClient[Any], loop: LoopThread) -> None:
    """Close, in the background, the client of a blocking client that was garbage-collected."""
    if loop.is_here:
        _begin_closing(client, loop)
        _warn(kind)


def _begin_closing(client: AsyncClient[Any], loop: LoopThread) -> None:
    work = _close_dropped(client, loop)
    try:
        future = loop.begin(work)
    except RuntimeError:  # the loop is closed: this was its last client
        work.close()
        return
    _closing.add(future)
    future.add_done_callback(_closing.discard)


async def _close_dropped(client: AsyncClient[Any], loop: LoopThread) -> None:
    try:
        # As after an exception: the last poll's records may not be processed.
        await client.__aexit__(GeneratorExit, None, None)
    finally:
        loop.release(client)


def _at_exit() -> None:
    """Close the producers that are still open, and wait until their records are done."""
    for client in list(_open):
        if client._loop.is_here:  # noqa: SLF001 - ours: the class is above
            _warn(type(client).__name__)
            if client._holds_records:  # noqa: SLF001 - ours, too
                client.close()
    wait([*_closing])


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_closing.clear)  # the parent closes them

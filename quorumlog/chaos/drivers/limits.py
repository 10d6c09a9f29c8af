"""The time limits of every call of every driver: a library that hangs never hangs a run.

A call that does not return within its limit is cancelled and left alone: its caller goes on with
CallTimedOut (or SendFailed, indefinite), and must throw the client away. The limits are far above
the time limits of the libraries themselves: a call that meets its limit has hung.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

from quorumlog.chaos.drivers.driver import AnyDriver, CallTimedOut, Driver, DriverError, SendFailed

_Result = TypeVar("_Result")
Call = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The longest duration of calls. A poll may take `poll_s` beyond its own timeout."""

    open_s: float = 15.0
    send_s: float = 10.0
    poll_s: float = 10.0
    call_s: float = 15.0
    close_s: float = 10.0
    create_topic_s: float = 45.0


DEFAULT: Final = Limits()
_abandoned: Final[set[asyncio.Future[Any]]] = set()  # a task that nothing refers to may vanish


async def within(limit_s: float, call: str, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await `work`; raise CallTimedOut after `limit_s`, also if `work` ignores its cancellation."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=limit_s)
    except asyncio.CancelledError:
        _abandon(task)
        raise
    if not task.done():
        _abandon(task)
        raise CallTimedOut(call, limit_s)
    return task.result()


def _abandon(task: asyncio.Future[Any]) -> None:
    """Cancel a task without a waiter, and ignore its outcome."""
    _abandoned.add(task)
    task.add_done_callback(_forget)
    task.cancel()


def _forget(task: asyncio.Future[Any]) -> None:
    _abandoned.discard(task)
    # asyncio logs an unread exception as a bug: of the task, and of a delivery that it has begun.
    if not task.cancelled() and task.exception() is None:
        result = task.result()
        if isinstance(result, asyncio.Future):
            result.add_done_callback(_forget)


async def _open(limits: Limits, call: Call, *arguments: Any) -> "_Limited":
    return _Limited(await within(limits.open_s, "open", call(*arguments)), limits)


async def _create_topic(limits: Limits, call: Call, *arguments: Any, **options: Any) -> None:
    await within(limits.create_topic_s, "create_topic", call(*arguments, **options))


async def _poll(limits: Limits, call: Call, timeout_ms: int) -> Any:
    return await within(limits.poll_s + timeout_ms / 1000, "poll", call(timeout_ms))


async def _send(limits: Limits, call: Call, *record: Any, **options: Any) -> asyncio.Future[int]:
    try:
        pending = await within(limits.send_s, "send", call(*record, **options))
    except CallTimedOut as error:
        raise SendFailed(str(error), definite=False) from error
    pending.add_done_callback(_forget)  # its caller may be cancelled before it reads the result
    return asyncio.ensure_future(_delivery(pending, limits))


async def _delivery(pending: asyncio.Future[int], limits: Limits) -> int:
    try:
        await asyncio.wait((pending,), timeout=limits.send_s)
    except asyncio.CancelledError:
        _abandon(pending)
        raise
    if not pending.done():
        _abandon(pending)
        late = f"NO_ANSWER: no acknowledgement within {limits.send_s:g} s"
        raise SendFailed(late, definite=False)
    return pending.result()


async def _close(limits: Limits, call: Call) -> None:
    """Close a client; a client that fails to close, or is late, is left behind."""
    with contextlib.suppress(DriverError):
        await within(limits.close_s, "close", call())


_OPENING: Final = ("producer", "consumer", "member", "transactional", "reader", "offsets", "admin")
_LIMITED: Final[Mapping[str, Callable[..., Awaitable[Any]]]] = {
    **dict.fromkeys(_OPENING, _open),
    "create_topic": _create_topic,
    "send": _send,
    "poll": _poll,
    "close": _close,
}
"""The calls that are not limited by `call_s`."""
_AT_ONCE: Final = frozenset({"capabilities", "rebalances", "generation"})
"""They return at once, and need no limit."""


class _Limited:
    """A driver whose calls end, or a client of such a driver."""

    def __init__(self, limited_object: Any, limits: Limits) -> None:
        self._object: Final = limited_object
        self._limits: Final = limits

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._object, name)
        if name in _AT_ONCE:
            return attribute
        if name in _LIMITED:
            return partial(_LIMITED[name], self._limits, attribute)
        return partial(self._call, name, attribute)

    async def _call(self, name: str, call: Call, *arguments: Any, **options: Any) -> Any:
        return await within(self._limits.call_s, name, call(*arguments, **options))


def limited(driver: Driver, limits: Limits = DEFAULT) -> AnyDriver:
    """Return the driver with time limits on all of its calls; a limited driver stays as it is."""
    wrapped = driver if isinstance(driver, _Limited) else _Limited(driver, limits)
    return cast(AnyDriver, wrapped)

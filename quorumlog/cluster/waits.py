"""Waits with a deadline, which block a thread, or which a coroutine awaits."""

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Generator
from typing import Any, Final, Self

from quorumlog.cluster.errors import ClusterError

TIMEOUT_S: Final = 15.0
POLL_S: Final = 0.02


class TookTooLong(ClusterError):
    """A condition did not hold in time; the message has the last state."""


class WaitEnded(Exception):
    """The coroutine that awaited the wait was cancelled."""


class Seen(dict[str, Any]):
    """The state in which a wait ended, as plain values.

    Without an event loop the wait is over when this object is made. In a coroutine the wait runs in
    a thread, and `await` fills the object; its cancellation ends the thread's wait.
    """

    def __init__(self, wait: Callable[[Callable[[], bool]], dict[str, Any]]) -> None:
        """`wait` blocks, and polls its argument: True once nothing awaits the result any more."""
        super().__init__()
        self._future: asyncio.Future[dict[str, Any]] | None = None
        self._is_cancelled: Final = threading.Event()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.update(wait(self._is_cancelled.is_set))
        else:
            self._future = loop.run_in_executor(None, wait, self._is_cancelled.is_set)

    def __await__(self) -> Generator[Any, None, Self]:
        future, self._future = self._future, None
        if future is not None:
            try:
                self.update((yield from future.__await__()))
            except asyncio.CancelledError:
                self._is_cancelled.set()
                raise
        return self

    def __del__(self) -> None:
        if getattr(self, "_future", None) is not None:
            self._is_cancelled.set()
            warnings.warn("a wait of a cluster was never awaited", RuntimeWarning, stacklevel=2)


def wait_until(
    condition: Callable[[], bool],
    reason: Callable[[], str],
    timeout_s: float,
    *,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Return when the condition holds. Raises TookTooLong with `reason()` after `timeout_s`.

    `pause` is called between two checks, with POLL_S or the seconds left, if fewer.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TookTooLong(f"{reason()}, after {timeout_s:g} s")
        pause(min(POLL_S, left_s))

"""Keeps requests to the brokers in flight: the loop that producer and consumer share.

Metadata, connections, responses, calls of the user and time decide which requests may be sent.
Each change of them wakes the pump, which calls its owner's `step` to start these requests.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from quorumlog.client.io.cluster import Cluster
from quorumlog.tasks import OnError, Tasks

_REST_MS_MIN: Final = 0.001  # less may be rounded away: the timer would end at the same time

Step = Callable[[float], float]
"""Starts the requests that may be sent at `now_ms`; returns when to step again (`inf`: never)."""


class Pump:
    """Runs `step` after each change of the cluster, after each `wake`, and at the time it returned.

    1. Calls of `wake` within one turn of the event loop make one step.
    2. After `close` there is no step, no timer and no request.
    """

    def __init__(self, cluster: Cluster, step: Step, *, on_error: OnError) -> None:
        """`on_error`: called with the unexpected error of a request."""
        self._cluster: Final = cluster
        self._step: Final = step
        self._loop: Final = asyncio.get_running_loop()
        self._requests: Final = Tasks(on_error)
        self._next: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        cluster.on_change.append(self.wake)

    def wake(self) -> None:
        """Make a step in the next turn of the event loop."""
        if self._next is None and not self._is_closed:
            self._next = self._loop.call_soon(self._run_step)

    def start(self, request: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a request in a task of its own."""
        return self._requests.start(request)

    def _run_step(self) -> None:
        self._next = None
        now_ms = self._cluster.now_ms()
        wake_at_ms = self._step(now_ms)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at_ms != float("inf") and not self._is_closed:
            delay_s = max(wake_at_ms - now_ms, _REST_MS_MIN) / 1000
            self._timer = self._loop.call_later(delay_s, self.wake)

    def stop(self) -> None:
        """End the steps; requests in progress continue."""
        self._is_closed = True
        self._cluster.on_change.remove(self.wake)
        for handle in (self._next, self._timer):
            if handle is not None:
                handle.cancel()

    async def close(self) -> None:
        """Cancel the requests in progress, after `stop`, and wait until they have ended."""
        await self._requests.stop()

"""A wakeup of one task, which also shows whether the task sleeps, and until when."""

import asyncio
import math
from typing import Final


class Wakeup:
    """An event on which one task waits. A wait that the event ends clears it."""

    def __init__(self) -> None:
        self._event: Final = asyncio.Event()
        self._until_ms: float | None = None  # None: no task waits

    def set(self) -> None:
        """End the wait under way, or else the next wait at once."""
        self._event.set()

    def clear(self) -> None:
        """Forget that it was set."""
        self._event.clear()

    def is_set(self) -> bool:
        """Whether `set` was called since the last wait."""
        return self._event.is_set()

    async def wait(self, duration_ms: float = math.inf) -> None:
        """Wait until it is set, at most so long."""
        self._until_ms = asyncio.get_running_loop().time() * 1000 + duration_ms
        try:
            async with asyncio.timeout(None if duration_ms == math.inf else duration_ms / 1000):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._until_ms = None
        self._event.clear()

    def sleeps_past(self, due_ms: float) -> bool:
        """Whether the task waits, and nothing wakes it at or before this monotonic time."""
        return self._until_ms is not None and self._until_ms > due_ms and not self.is_set()

    def sleeps(self) -> bool:
        """Whether the task waits without a deadline, and nothing has woken it."""
        return self._until_ms == math.inf and not self.is_set()

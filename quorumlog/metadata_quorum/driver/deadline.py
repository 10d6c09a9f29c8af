"""One deadline, and the call to make at that time."""

from collections.abc import Callable
from typing import Final

from quorumlog.metadata_quorum.driver.dependencies import Clock, Timer


class Deadline:
    """Calls `action` at the time that was set last; None: never.

    `action` gets the time at which the call was due: it is late if the process stood still.
    """

    def __init__(self, clock: Clock, action: Callable[[int], None]) -> None:
        self._clock: Final = clock
        self._action: Final = action
        self._time_ms: int | None = None
        self._due_ms = 0
        self._timer: Timer | None = None

    @property
    def is_set(self) -> bool:
        """Whether a call is scheduled."""
        return self._timer is not None

    def set(self, time_ms: int | None) -> None:
        """Change the time of the call."""
        if time_ms == self._time_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._time_ms = time_ms
        if time_ms is not None:
            self._due_ms = max(time_ms, self._clock.now_ms())  # it may have passed before
        self._timer = None if time_ms is None else self._clock.call_at(time_ms, self._due)

    def _due(self) -> None:
        self._time_ms = self._timer = None
        self._action(self._due_ms)

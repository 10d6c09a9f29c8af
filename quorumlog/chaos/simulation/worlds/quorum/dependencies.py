"""The clock and the executor of a driver on a simulated machine."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.metadata_quorum.driver.dependencies import DriverDependencies
from quorumlog.storage.errors import StorageError

T = TypeVar("T")


class Timer:
    """A scheduled call."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Cancel the call."""
        self._action = None

    @property
    def is_set(self) -> bool:
        """Whether the call is still due."""
        return self._action is not None

    def due(self) -> None:
        """Call, unless that was cancelled."""
        if self._action is not None:
            self._action()


class PartitionDependencies:
    """Clock and Executor of the process on a machine.

    A write begins after a part of its time, so a crash may come before it, or before its end is
    known. While the process is paused, its calls wait.
    """

    def __init__(self, machine: Machine, environment: Environment) -> None:
        self._machine: Final = machine
        self._environment: Final = environment
        self._waiting: Final = deque[tuple[Callable[..., None], tuple[Any, ...]]]()
        self._works = 0  # in progress

    def forget(self) -> None:
        """Begin a new life of the process."""
        self._waiting.clear()
        self._works = 0

    def dependencies(self, **others: Any) -> DriverDependencies:
        """Return the dependencies of a driver: this clock and executor, and the others."""
        return DriverDependencies(clock=self, executor=self, failed=self._failed, **others)

    def _failed(self, error: BaseException) -> None:
        """End the machine after an error of its disk. Raises any other error."""
        if not isinstance(error, StorageError):
            raise error
        self._machine.fail()

    @property
    def is_busy(self) -> bool:
        """Whether a write is in progress, or a call waits."""
        return self._machine.is_paused or bool(self._works or self._waiting)

    def call(self, action: Callable[..., None], *arguments: object) -> None:
        """Call within the process: now, or when it runs again."""
        if self._machine.is_paused or self._waiting:
            self._waiting.append((action, arguments))
        else:
            action(*arguments)

    def resume(self) -> None:
        """Make the calls that have waited."""
        while self._waiting and self._machine.is_up and not self._machine.is_paused:
            action, arguments = self._waiting.popleft()
            action(*arguments)

    # --- Clock ---

    def now_ms(self) -> int:
        """Return the monotonic time."""
        return self._machine.now_ms()

    def wall_ms(self) -> int:
        """Return the time of records."""
        return self._machine.now_ms()

    def call_at(self, time_ms: int, action: Callable[[], None]) -> Timer:
        """Call `action` once `now_ms` has reached `time_ms`: later, never from within."""
        timer = Timer(action)
        self._machine.later(self._machine.until_us(time_ms), self._due, time_ms, timer)
        return timer

    def _due(self, time_ms: int, timer: Timer) -> None:
        if not timer.is_set:
            return
        if self._machine.now_ms() < time_ms:  # its clock has slowed down
            self._machine.later(self._machine.until_us(time_ms), self._due, time_ms, timer)
        else:
            self.call(timer.due)

    # --- Executor ---

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work`, then call `done` with its result. A disk error ends the machine."""
        self._works += 1
        took_us = self._environment.fsync_us(self._machine.node_id)
        self._machine.later(took_us // 2, self._run, work, done, took_us - took_us // 2)

    def _run(self, work: Callable[[], T], done: Callable[[T], None], rest_us: int) -> None:
        try:
            result = work()
        except StorageError:
            self._machine.fail()
            return
        self._machine.later(rest_us, self.call, self._done, done, result)

    def _done(self, done: Callable[[T], None], result: T) -> None:
        self._works -= 1
        done(result)

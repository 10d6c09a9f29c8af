"""Work that is repeated while the disk has no room for it, or the process no file handle.

A node must not end for lack of room, which may come back. Such a failure has changed no data
(DiskExhausted), so the same work may be repeated until it succeeds. Any other error of the disk is
final.
docs/decisions/0021-disk-errors.md
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from quorumlog.lasting_condition import LastingCondition
from quorumlog.metadata_quorum.driver.dependencies import Clock, Executor, Timer
from quorumlog.storage.errors import DiskExhausted

T = TypeVar("T")

FIRST_WAIT_MS: Final = 100  # then twice as long, up to
WAIT_MAX_MS: Final = 1000
_logger: Final = logging.getLogger(__name__)


class PatientExecutor:
    """An `Executor` that repeats work for which the disk has no room.

    1. `done` is called once the work has succeeded, never before; after `stop` it is not called for
       work that waits.
    2. `is_waiting` is True while any work waits to be repeated.
    3. `was_repeated` is True while `done` is called for work that had to wait.
    """

    was_repeated = False

    def __init__(
        self, executor: Executor, clock: Clock, lacks_room: Callable[[], None] = lambda: None
    ) -> None:
        """`lacks_room` is called whenever work begins to wait."""
        self.executor: Final = executor
        self._lacks_room: Final = lacks_room
        self._clock: Final = clock
        self._waiting: Final[set[int]] = set()
        self._timers: Final[dict[int, Timer]] = {}
        self._works = 0
        self._condition: Final = LastingCondition(_logger)
        self._has_ended = False

    @property
    def is_waiting(self) -> bool:
        """Whether any work waits for room."""
        return bool(self._waiting)

    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` until it succeeds, then call `done` with its result."""
        self._works += 1
        self._begin(self._works, work, done, FIRST_WAIT_MS)

    def run_again(
        self, refusal: DiskExhausted, work: Callable[[], T], done: Callable[[T], None]
    ) -> None:
        """Run `work`, which has just failed for lack of room, after a wait; then as `run`."""
        self._works += 1
        self._ended(self._works, work, done, FIRST_WAIT_MS, refusal)

    def stop(self) -> None:
        """Cancel all repetitions."""
        self._has_ended = True
        for timer in self._timers.values():
            timer.cancel()

    def _begin(
        self, number: int, work: Callable[[], T], done: Callable[[T], None], wait_ms: int
    ) -> None:
        self._timers.pop(number, None)
        ended = partial(self._ended, number, work, done, wait_ms)
        self.executor.run(partial(attempt, work), ended)

    def _ended(
        self,
        number: int,
        work: Callable[[], T],
        done: Callable[[T], None],
        wait_ms: int,
        outcome: T | DiskExhausted,
    ) -> None:
        now_ms = self._clock.now_ms()
        if isinstance(outcome, DiskExhausted):
            if self._has_ended:
                return
            self._condition.note(now_ms, f"no room for the metadata: it is tried again: {outcome}")
            self._waiting.add(number)
            again = partial(self._begin, number, work, done, min(2 * wait_ms, WAIT_MAX_MS))
            self._timers[number] = self._clock.call_at(now_ms + wait_ms, again)
            self._lacks_room()
            return
        self.was_repeated = number in self._waiting
        self._waiting.discard(number)
        if not self._waiting:
            self._condition.end(now_ms, "there is room for the metadata again")
        done(outcome)


def attempt(work: Callable[[], T]) -> T | DiskExhausted:
    """Return the result of `work`, or the DiskExhausted after which it may be repeated."""
    try:
        return work()
    except DiskExhausted as refusal:
        return refusal

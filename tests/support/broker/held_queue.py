"""A disk queue whose work is done when the test releases it, on the test's own thread."""

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, TypeVar

from quorumlog.broker.partitions.log.disk_queue import outcome_of
from quorumlog.storage.errors import StorageError

T = TypeVar("T")


class HeldQueue:
    """While `is_held`, work waits for `release`; else it is done at once.

    While `holds_outcomes`, work is done at once, and its outcome waits.
    """

    def __init__(self) -> None:
        self.is_held = self.holds_outcomes = False
        self.held: Final[deque[tuple[Hashable, Callable[[], None]]]] = deque()

    def submit(
        self, key: Hashable, work: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        def perform() -> None:
            done(outcome_of(work))

        if self.holds_outcomes:
            self.held.append((key, partial(done, outcome_of(work))))
        elif self.is_held:
            self.held.append((key, perform))
        else:
            perform()

    def release(self) -> list[Any]:
        """Do all waiting work, and the work that it submits; return the keys in order."""
        self.is_held = self.holds_outcomes = False
        keys = []
        while self.held:
            key, perform = self.held.popleft()
            keys.append(key)
            perform()
        return keys

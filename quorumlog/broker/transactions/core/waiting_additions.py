"""Additions to a transaction that arrive while their transactional id is busy: they wait briefly.

A client of transaction.version 2 begins a transaction while the markers of its last transaction are
being written, and the leaders of its partitions send an addition each at the same time. A refusal
and a retry would cost a multiple of the time that the pending change takes.
"""

from dataclasses import dataclass, field
from typing import Final

from quorumlog.broker.coordination.core.deadlines import Deadlines
from quorumlog.broker.transactions.core.requests import AddOffsets, AddPartitions
from quorumlog.broker.transactions.core.settings import TransactionSettings
from quorumlog.invariants import require

HELD_MAX: Final = 100  # of one transactional id


@dataclass(frozen=True, slots=True)
class Addition:
    """A request to add partitions; it gets one answer."""

    request_id: int
    request: AddPartitions | AddOffsets


@dataclass(slots=True)
class _Window:
    """The additions that wait while an id is busy, and their deadline."""

    until_ms: int
    held: list[Addition] = field(default_factory=list)


class WaitingAdditions:
    """The held additions of all ids.

    A busy id has one window, which opens with the first addition. An addition after the end
    of the window is refused, and its sender retries: a long change delays a connection only once.

    Only additions for clients of transaction.version 2 wait: their epochs distinguish transactions.

    # DEVIATION: Kafka answers each CONCURRENT_TRANSACTIONS at once.
    # docs/decisions/0035-transaction-additions.md
    """

    def __init__(self, settings: TransactionSettings) -> None:
        self._hold_max_ms: Final = settings.hold_max_ms
        self._windows: Final[dict[str, _Window]] = {}
        self._deadlines: Final = Deadlines[str]()

    @property
    def next_deadline_ms(self) -> int | None:
        """The end of the next window with held additions, else None."""
        return self._deadlines.first_ms

    def hold(self, now_ms: int, addition: Addition) -> bool:
        """Hold an addition to a busy id; False: refuse it, its sender retries."""
        transactional_id = addition.request.transactional_id
        window = self._windows.get(transactional_id)
        if window is None:
            window = self._windows[transactional_id] = _Window(now_ms + self._hold_max_ms)
            self._deadlines.set(transactional_id, window.until_ms)
        if now_ms >= window.until_ms or len(window.held) >= HELD_MAX:
            return False
        window.held.append(addition)
        return True

    def held(self, transactional_id: str) -> list[Addition]:
        """Return the additions held for an id, in order."""
        window = self._windows.get(transactional_id)
        return [] if window is None else window.held

    def take(self, transactional_id: str) -> list[Addition]:
        """Remove and return the additions held for an id that is no longer busy."""
        window = self._windows.pop(transactional_id, None)
        if window is None:
            return []
        self._deadlines.set(transactional_id, None)
        return window.held

    def take_late(self, now_ms: int, limit: int) -> list[Addition]:
        """Return additions held for too long; closes the windows of `limit` ids at most."""
        late: list[Addition] = []
        for transactional_id in self._deadlines.due(now_ms, limit):
            self._deadlines.set(transactional_id, None)
            window = self._windows[transactional_id]  # stays, closed: no addition waits again
            late += window.held
            window.held = []
        return late

    def check_progress(self, transactional_id: str) -> None:
        """Raise InvariantViolation if additions lack a deadline, or a deadline lacks additions."""
        window, has_deadline = (
            self._windows.get(transactional_id),
            transactional_id in self._deadlines,
        )
        require(
            not (self.held(transactional_id) and not has_deadline), "an addition has a deadline"
        )
        require(window is not None or not has_deadline, "a deadline is for additions that wait")

    def take_all(self) -> list[Addition]:
        """Remove and return the held additions of all ids."""
        return [one for name in sorted(self._windows) for one in self.take(name)]

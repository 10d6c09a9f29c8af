"""Fetch sessions, the follower's half: which of our questions the leader knows.

A session begins with a full fetch; later fetches name only changes. If the leader does not know
the session, or an answer was lost, a new session begins. Source: KIP-227.
"""

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from quorumlog.broker.fetching.core.fetch_sessions import (
    FULL_EPOCH,
    NO_SESSION,
    SWEEP_INTERVAL_MS,
    SWEEP_PARTITIONS,
    next_epoch,
)
from quorumlog.wire.codec.error_codes import ErrorCode

KeyT = TypeVar("KeyT")
QuestionT = TypeVar("QuestionT")


class Changes(NamedTuple, Generic[KeyT]):
    """The partitions that the next fetch adds or changes, and those that it drops."""

    named: list[KeyT]
    forgotten: list[KeyT]


class SessionClient(Generic[KeyT, QuestionT]):
    """One session with one leader; one fetch at a time.

    `asked` holds the question that the leader answers for each partition of the session; questions
    are compared by equality. `session_id` and `epoch` go into the next request. `closes`: the id of
    a session that this one replaces.
    """

    def __init__(self, closes: int = NO_SESSION) -> None:
        self.session_id = closes
        self.epoch = FULL_EPOCH
        self.asked: dict[KeyT, QuestionT] = {}
        self._touched: dict[KeyT, None] = {}
        self._swept_ms = 0
        self._to_sweep: list[KeyT] = []  # what the sweep that is under way has not looked at

    def touch(self, key: KeyT) -> None:
        """Note that the question for a partition may have changed."""
        self._touched[key] = None

    def changes(
        self, now_ms: int, keys: Iterable[KeyT], question: Callable[[KeyT], QuestionT | None]
    ) -> Changes[KeyT]:
        """Return what the next fetch must name. The caller must send that fetch.

        `keys`: all that may be asked for. `question` returns None for what is not to be asked now.
        Only what was touched is looked at, and now and then some of the others in turn.
        """
        looked_at, self._touched = self._touched, {}
        if self.epoch == FULL_EPOCH:
            self.asked.clear()
            looked_at = dict.fromkeys(keys)
        elif now_ms - self._swept_ms >= SWEEP_INTERVAL_MS:
            self._swept_ms = now_ms
            self._to_sweep = self._to_sweep or list(dict.fromkeys([*keys, *self.asked]))
            looked_at |= dict.fromkeys(self._to_sweep[:SWEEP_PARTITIONS])
            del self._to_sweep[:SWEEP_PARTITIONS]
        changes: Changes[KeyT] = Changes([], [])
        for key in looked_at:
            wanted = question(key)
            if wanted is None:
                self._touched[key] = None  # it may be wanted again
                if self.asked.pop(key, None) is not None:
                    changes.forgotten.append(key)
            elif self.asked.get(key) != wanted:
                self.asked[key] = wanted
                changes.named.append(key)
        return changes

    def answered(self, error_code: int, session_id: int) -> bool:
        """Handle the head of an answer; False: ignore it, and begin a new session."""
        if error_code != ErrorCode.NONE:
            self.epoch = FULL_EPOCH
            return False
        if self.epoch == FULL_EPOCH or session_id == NO_SESSION:
            self.session_id = session_id
            self.epoch = FULL_EPOCH
        if session_id != NO_SESSION:
            self.epoch = next_epoch(self.epoch)
        return True

"""Fetch sessions, the follower's half: the fetch positions that the leader has.

A session begins with a full fetch; later fetches name only changes. If the leader has lost the
session, or a response was lost, a new session begins. Source: KIP-227.
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
    """The partitions that the next fetch adds or changes (`named`), and drops (`forgotten`)."""

    named: list[KeyT]
    forgotten: list[KeyT]


class SessionClient(Generic[KeyT, QuestionT]):
    """One session with one leader; one fetch at a time.

    `asked`: for each partition of the session, the question (a fetch position) that the leader has;
    questions are compared by equality. `session_id` and `epoch` go into the next request. `closes`:
    the id of a session that this one replaces.
    """

    def __init__(self, closes: int = NO_SESSION) -> None:
        self.session_id = closes
        self.epoch = FULL_EPOCH
        self.asked: dict[KeyT, QuestionT] = {}
        self._touched: dict[KeyT, None] = {}
        self._swept_ms = 0
        self._to_sweep: list[KeyT] = []  # the rest of the current sweep

    def touch(self, key: KeyT) -> None:
        """Mark a partition whose question may have changed."""
        self._touched[key] = None

    def covers(self, key: KeyT, question: QuestionT) -> bool:
        """Whether the leader has this question, or the next fetch checks the partition."""
        is_checked = self.epoch == FULL_EPOCH or key in self._touched
        return is_checked or self.asked.get(key) == question

    def changes(
        self, now_ms: int, keys: Iterable[KeyT], question: Callable[[KeyT], QuestionT | None]
    ) -> Changes[KeyT]:
        """Return the changes that the next fetch must name. The caller must send that fetch.

        `keys`: all partitions that may be fetched. `question` returns None for a partition not to
        be fetched now. Only touched partitions are checked, and periodically some of the others.
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
                self._touched[key] = None  # checked again next time
                if self.asked.pop(key, None) is not None:
                    changes.forgotten.append(key)
            elif self.asked.get(key) != wanted:
                self.asked[key] = wanted
                changes.named.append(key)
        return changes

    def only_touched(self, now_ms: int) -> KeyT | None:
        """Return the partition that `changes` would check if it is the only one, as in most rounds.

        None: there are others, or none.
        """
        is_swept = now_ms - self._swept_ms < SWEEP_INTERVAL_MS
        if len(self._touched) != 1 or not is_swept or self.epoch == FULL_EPOCH:
            return None
        (key,) = self._touched
        return key

    def note_asked(self, key: KeyT, question: QuestionT) -> None:
        """Record the question of the next fetch, which names only this partition."""
        self._touched.clear()
        self.asked[key] = question

    def answered(self, error_code: int, session_id: int) -> bool:
        """Handle the header of a response; False: ignore the response, begin a new session."""
        if error_code != ErrorCode.NONE:
            self.epoch = FULL_EPOCH
            return False
        if self.epoch == FULL_EPOCH or session_id == NO_SESSION:
            self.session_id = session_id
            self.epoch = FULL_EPOCH
        if session_id != NO_SESSION:
            self.epoch = next_epoch(self.epoch)
        return True

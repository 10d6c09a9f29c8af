"""The deadlines of members, in order: their sessions, rebalances, joins and syncs."""

from enum import IntEnum
from typing import Final, NamedTuple

from sortedcontainers import SortedSet


class DeadlineKind(IntEnum):
    """The kind of a deadline, by the action that the member must take before it."""

    SESSION = 0  # send a heartbeat
    REBALANCE = 1  # revoke partitions
    JOIN = 2  # join again (a classic member)
    SYNC = 3  # send SyncGroup (a classic member that has joined)


class DeadlineKey(NamedTuple):
    """A member has one deadline of each kind, at most."""

    group_id: str
    member_id: str
    kind: DeadlineKind


class Deadlines:
    """Invariant: `_in_order` has one entry for each entry of `_by_key`."""

    def __init__(self) -> None:
        self._by_key: Final[dict[DeadlineKey, int]] = {}
        self._in_order: Final[SortedSet[tuple[int, DeadlineKey]]] = SortedSet()

    @property
    def first_ms(self) -> int | None:
        """The earliest deadline; None: there is no deadline."""
        return self._in_order[0][0] if self._in_order else None

    def __contains__(self, key: DeadlineKey) -> bool:
        return key in self._by_key

    def set(self, key: DeadlineKey, deadline_ms: int) -> None:
        """Set a deadline, or move it."""
        self.drop(key)
        self._by_key[key] = deadline_ms
        self._in_order.add((deadline_ms, key))

    def drop(self, key: DeadlineKey) -> None:
        """Remove a deadline, if there is one."""
        deadline_ms = self._by_key.pop(key, None)
        if deadline_ms is not None:
            self._in_order.remove((deadline_ms, key))

    def pop_due(self, now_ms: int) -> DeadlineKey | None:
        """Remove the earliest due deadline, and return its key; None: no deadline is due."""
        if not self._in_order or self._in_order[0][0] > now_ms:
            return None
        _, key = self._in_order[0]
        self.drop(key)
        return key

"""Deadlines in the order of time, for groups, members and transactional ids."""

from typing import Final, Generic, TypeVar

from sortedcontainers import SortedSet

KeyT = TypeVar("KeyT")


class Deadlines(Generic[KeyT]):
    """At most one deadline for each key, the earliest first; of equal ones, the least key first.

    Only `shift` walks over all keys. Invariant: `_in_order` has one entry for each entry of `_of`.
    """

    def __init__(self) -> None:
        self._in_order: Final[SortedSet[tuple[int, KeyT]]] = SortedSet()  # (deadline_ms, key)
        self._of: Final[dict[KeyT, int]] = {}

    @property
    def first_ms(self) -> int | None:
        """The earliest deadline; None: there is no deadline."""
        return self._in_order[0][0] if self._in_order else None

    def __contains__(self, key: KeyT) -> bool:
        return key in self._of

    def of(self, key: KeyT) -> int | None:
        """Return the deadline of a key; None: it has none."""
        return self._of.get(key)

    def set(self, key: KeyT, deadline_ms: int | None) -> None:
        """Replace the deadline of a key; None: remove it."""
        known_ms = self._of.get(key)
        if deadline_ms == known_ms:
            return
        if known_ms is not None:
            self._in_order.remove((known_ms, key))
            del self._of[key]
        if deadline_ms is not None:
            self._of[key] = deadline_ms
            self._in_order.add((deadline_ms, key))

    def shift(self, by_ms: int) -> None:
        """Move all deadlines by `by_ms`. It walks over all keys."""
        shifted = [(key, deadline_ms + by_ms) for key, deadline_ms in self._of.items()]
        self._in_order.clear()
        self._of.clear()
        for key, deadline_ms in shifted:
            self.set(key, deadline_ms)

    def due(self, now_ms: int, limit: int) -> list[KeyT]:
        """Return at most `limit` keys whose deadline has come, the earliest first."""
        first = self._in_order.islice(0, limit)
        return [key for deadline_ms, key in first if deadline_ms <= now_ms]

    def pop_due(self, now_ms: int) -> KeyT | None:
        """Return the key with the earliest due deadline, and remove it; None: none is due."""
        for key in self.due(now_ms, 1):
            self.set(key, None)
            return key
        return None

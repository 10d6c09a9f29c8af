"""The deadlines of transactional ids, in order of time."""

from sortedcontainers import SortedSet


class Deadlines:
    """Invariant: an id has at most one deadline. No method walks over all ids."""

    def __init__(self) -> None:
        self._in_order: SortedSet[tuple[int, str]] = SortedSet()
        self._of: dict[str, int] = {}

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline, else None."""
        return self._in_order[0][0] if self._in_order else None

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._of

    def set(self, transactional_id: str, deadline_ms: int | None) -> None:
        """Replace the id's deadline; None: it has no deadline."""
        known_ms = self._of.pop(transactional_id, None)
        if known_ms is not None:
            self._in_order.remove((known_ms, transactional_id))
        if deadline_ms is not None:
            self._of[transactional_id] = deadline_ms
            self._in_order.add((deadline_ms, transactional_id))

    def due(self, now_ms: int, limit: int) -> list[str]:
        """Return at most `limit` ids that are due, the earliest first."""
        found = []
        for deadline_ms, transactional_id in self._in_order.islice(0, limit):
            if deadline_ms > now_ms:
                break
            found.append(transactional_id)
        return found

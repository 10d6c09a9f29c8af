"""The time at which each group must be checked, because a timeout may change it."""

from sortedcontainers import SortedSet


class GroupDeadlines:
    """At most one deadline for each group, the earliest first.

    A deadline may come before its group's next timeout: a heartbeat does not move it.
    """

    def __init__(self) -> None:
        self._in_order: SortedSet[tuple[int, str]] = SortedSet()  # (deadline_ms, group id)
        self._of: dict[str, int] = {}  # group id -> its deadline_ms

    @property
    def next_ms(self) -> int | None:
        """The earliest deadline; None: no group has a deadline."""
        return self._in_order[0][0] if self._in_order else None

    def note(self, group_id: str, deadline_ms: int | None) -> None:
        """Replace the group's deadline; None: remove it."""
        noted_ms = self._of.get(group_id)
        if deadline_ms == noted_ms:
            return
        if noted_ms is not None:
            self._in_order.remove((noted_ms, group_id))
            del self._of[group_id]
        if deadline_ms is not None:
            self._in_order.add((deadline_ms, group_id))
            self._of[group_id] = deadline_ms

    def pop_due(self, now_ms: int) -> str | None:
        """Return the group with the earliest due deadline, and remove it; None: none is due."""
        if not self._in_order or self._in_order[0][0] > now_ms:
            return None
        _, group_id = self._in_order.pop(0)
        del self._of[group_id]
        return group_id

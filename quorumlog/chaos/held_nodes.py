"""The actions of a schedule that hold nodes down, paused or in another bad state. Pure.

Faults may overlap. A node that two of them have killed is killed once, and starts again when the
last one releases it. A node that is being started may be killed again: then it is down because of
the new fault alone. A node that dies is no longer paused.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from quorumlog.chaos.faults.fault import MAY_END, UNDONE_BY

_START: Final = "start"
_OF_THE_PROCESS: Final = frozenset({"resume", "feed"})  # states that end with the process


A = TypeVar("A", bound=Hashable)  # an action in progress


class Hold(NamedTuple, Generic[A]):
    """An action holds a node in the state that the operation `undo` ends."""

    undo: str
    node_id: int
    action: A


class HeldNodes(Generic[A]):
    """The holds of all actions. A node is down exactly while an action holds it down."""

    def __init__(self) -> None:
        self._holds: Final[dict[tuple[str, int], list[A]]] = defaultdict(list)
        # Undo operations under way, and their actions: a hold counts until its undoing is over.
        self._returning: Final[dict[tuple[str, int], A]] = {}
        self._may_end: Final[dict[int, A]] = {}  # see `may_end`
        self._ends_soon: Final[dict[int, A]] = {}  # an fsync fails, and a process needs a moment

    def is_down(self, node_id: int) -> bool:
        """Return whether an action has killed or stopped the node, and not started it again."""
        return bool(self._holds[_START, node_id])

    def is_held(self, node_id: int) -> bool:
        """Return whether any action holds the node."""
        return any(node == node_id and held for (_, node), held in self._holds.items())

    def may_end(self, node_id: int) -> A | None:
        """Return the last action that broke the disk of the node's process, or None.

        The process may give up later, too, when the disk works again.
        """
        return self._may_end.get(node_id) or self._ends_soon.get(node_id)

    def take(self, operation: str, node_ids: Iterable[int], action: A) -> tuple[int, ...]:
        """Add holds of the action; return the nodes on which to perform the operation."""
        undo, fresh = UNDONE_BY[operation], []
        for node_id in node_ids:
            if operation == "fail_fsync":
                self._ends_soon[node_id] = action
            elif undo == _START:
                self._ends_soon.pop(node_id, None)
            held = self._holds[undo, node_id]
            if held == [self._returning.get((undo, node_id))]:
                held.clear()  # its undoing is under way, and will fail or have no effect
            if not held:
                fresh.append(node_id)
            held.append(action)
            if undo in MAY_END:
                self._may_end[node_id] = action
        return tuple(fresh)

    def give_back(self, operation: str, node_ids: Iterable[int]) -> None:
        """Remove the holds of nodes on which the operation was not performed."""
        undo = UNDONE_BY[operation]
        for node_id in node_ids:
            undoing = self._returning.get((undo, node_id))
            self._holds[undo, node_id][:] = [] if undoing is None else [undoing]

    def held_by(self, undo: str, node_ids: Iterable[int], action: A) -> tuple[int, ...]:
        """Return those of the nodes that the action holds in the state that `undo` ends."""
        return tuple(node_id for node_id in node_ids if action in self._holds[undo, node_id])

    def begin_to_undo(self, undo: str, node_ids: Iterable[int], action: A) -> tuple[int, ...]:
        """Return the nodes that no other action holds: `undo` must be performed on them.

        The action releases the other nodes at once, so that the last action to release them undoes
        it.
        """
        alone = []
        for node_id in node_ids:
            held = self._holds[undo, node_id]
            if {*held} == {action}:
                alone.append(node_id)
                self._returning[undo, node_id] = action
                if undo == _START and not any(self._holds[broken, node_id] for broken in MAY_END):
                    self._may_end.pop(node_id, None)  # the next process has a disk that works
            else:
                held[:] = [holder for holder in held if holder != action]
        return tuple(alone)

    def end_undoing(self, undo: str, node_ids: Iterable[int], action: A) -> tuple[int, ...]:
        """Remove the holds of the action; return the nodes that no other action took meanwhile."""
        own = []
        for node_id in node_ids:
            held = self._holds[undo, node_id]
            if action in held:
                own.append(node_id)
            held[:] = [holder for holder in held if holder != action]
            if self._returning.get((undo, node_id)) == action:
                del self._returning[undo, node_id]
        return tuple(own)

    def died(self, node_ids: Iterable[int]) -> list[Hold[A]]:
        """Remove and return the holds that ended with the processes of these nodes."""
        ended = []
        for node_id in node_ids:
            for undo in sorted(_OF_THE_PROCESS):
                holders = self._holds.pop((undo, node_id), [])
                ended += [Hold(undo, node_id, action) for action in holders]
        return ended

    def survived(self, holds: Iterable[Hold[A]]) -> None:
        """Restore the holds that `died` returned: these processes have not ended after all."""
        for hold in holds:
            self._holds[hold.undo, hold.node_id].append(hold.action)

    def clear(self) -> None:
        """Remove all holds."""
        self._holds.clear()
        self._returning.clear()
        self._may_end.clear()
        self._ends_soon.clear()

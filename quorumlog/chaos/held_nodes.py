"""Which actions of a schedule hold which nodes down, paused or in another bad state. Pure.

Faults may overlap. A node that two of them have killed is killed once, and starts again when the
last one lets go. A node that dies is no longer paused.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from quorumlog.chaos.faults.fault import UNDONE_BY

_START: Final = "start"
_OF_THE_PROCESS: Final = frozenset({"resume", "feed"})  # what ends with the process


class Hold(NamedTuple):
    """An action holds a node in the state that the operation `undo` ends."""

    undo: str
    node_id: int
    action_id: str


class HeldNodes:
    """The holds of all actions. A node is down exactly while an action holds it so."""

    def __init__(self) -> None:
        self._holds: Final[dict[tuple[str, int], list[str]]] = defaultdict(list)
        self._returning: Final[set[int]] = set()  # they are being started: a kill hits them again

    def is_down(self, node_id: int) -> bool:
        """Tell whether an action has killed or stopped the node, and not started it again."""
        return bool(self._holds[_START, node_id])

    def is_held(self, node_id: int) -> bool:
        """Tell whether any action holds the node."""
        return any(node == node_id and held for (_, node), held in self._holds.items())

    def take(self, operation: str, node_ids: Iterable[int], action_id: str) -> tuple[int, ...]:
        """Note what the action does; return the nodes on which it is to be performed."""
        undo, fresh = UNDONE_BY[operation], []
        for node_id in node_ids:
            held = self._holds[undo, node_id]
            if undo == _START and node_id in self._returning:
                self._returning.discard(node_id)
                held.clear()  # the new action has it alone: the other one's start will fail
            if not held:
                fresh.append(node_id)
            held.append(action_id)
        return tuple(fresh)

    def held_by(self, undo: str, node_ids: Iterable[int], action_id: str) -> tuple[int, ...]:
        """Return those of the nodes that the action holds in the state that `undo` ends."""
        return tuple(node_id for node_id in node_ids if action_id in self._holds[undo, node_id])

    def begin_to_undo(self, undo: str, node_ids: Iterable[int], action_id: str) -> tuple[int, ...]:
        """Return the nodes that no other action holds: for them, `undo` is to be performed."""
        alone = tuple(
            node_id for node_id in node_ids if {*self._holds[undo, node_id]} == {action_id}
        )
        if undo == _START:
            self._returning.update(alone)
        return alone

    def release(self, undo: str, node_ids: Iterable[int], action_id: str) -> None:
        """Forget the holds of the action."""
        for node_id in node_ids:
            held = self._holds[undo, node_id]
            held[:] = [holder for holder in held if holder != action_id]
            if not held:
                self._returning.discard(node_id)

    def died(self, node_ids: Iterable[int]) -> list[Hold]:
        """Forget, and return, what held the processes of these nodes."""
        ended = []
        for node_id in node_ids:
            for undo in sorted(_OF_THE_PROCESS):
                holders = self._holds.pop((undo, node_id), [])
                ended += [Hold(undo, node_id, action_id) for action_id in holders]
        return ended

    def clear(self) -> None:
        """Forget all holds."""
        self._holds.clear()
        self._returning.clear()

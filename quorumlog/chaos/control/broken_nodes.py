"""The nodes that verbs of a nemesis have killed or paused. Pure.

Several faults may hold a node: the end of a block ends the block's own fault alone.
"""

from collections.abc import Iterable
from typing import Final

_NodeIds = tuple[int, ...]


class BrokenNodes:
    """By the operation that undoes them: the faults of each broken node, with their owners."""

    def __init__(self) -> None:
        self._faults: Final[dict[str, dict[int, dict[int, object]]]] = {"start": {}, "resume": {}}

    def add(self, undo: str, node_ids: Iterable[int], number: int, owner: object) -> None:
        """Note a fault by its number. `owner`: the block that ends it; None: none does."""
        for node_id in node_ids:
            self._faults[undo].setdefault(node_id, {})[number] = owner

    def held(self, undo: str, *, owner: object = None) -> _NodeIds:
        """Return the nodes with a fault that `undo` ends, sorted; with an owner: of this owner."""
        return tuple(
            node_id
            for node_id, owners in sorted(self._faults.get(undo, {}).items())
            if owner is None or owner in owners.values()
        )

    def held_by_others(self, undo: str, owner: object) -> _NodeIds:
        """Return the nodes that the faults of other owners hold, too."""
        return tuple(
            node_id
            for node_id, owners in self._faults[undo].items()
            if any(of is not owner for of in owners.values())
        )

    def end(self, undo: str, node_ids: Iterable[int], owner: object = None) -> dict[int, list[int]]:
        """Remove the faults of these nodes, of this owner if given; return their nodes, by number.

        The nodes of a number are in the given order.
        """
        ended: dict[int, list[int]] = {}
        faults = self._faults[undo]
        for node_id in node_ids:
            owners = faults.pop(node_id, {})
            left = {n: of for n, of in owners.items() if owner is not None and of is not owner}
            if left:
                faults[node_id] = left
            for number in owners.keys() - left.keys():
                ended.setdefault(number, []).append(node_id)
        return dict(sorted(ended.items()))

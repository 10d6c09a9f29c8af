"""kill: one process dies at once. Its writes stay in the page cache of its machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import Operation, ProcessFault, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill(ProcessFault):
    """SIGKILL to a node."""

    name: ClassVar[str] = "kill"
    text: ClassVar[str] = "SIGKILL a node, start it again after a while"
    needs: ClassVar[frozenset[Operation]] = frozenset({"kill", "start"})

    def inflict(self, node_ids: tuple[int, ...], running: Sequence[int]) -> tuple[Step, ...]:
        """Kill the nodes."""
        del running
        return (Step(operation="kill", node_ids=node_ids),)

    def take_back(self, node_ids: tuple[int, ...]) -> tuple[Step, ...]:
        """Start them again."""
        return (Step(operation="start", node_ids=node_ids),)


FAULTS: Final = (Kill,)

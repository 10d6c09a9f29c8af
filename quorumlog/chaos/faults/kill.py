"""kill: one process dies at once. Its writes stay in the page cache of its machine."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import Operation, ProcessFault, Step, named


@named("kill", "SIGKILL a node, start it again after a while")
class Kill(ProcessFault):
    """SIGKILL to a node: its writes stay in the page cache of its machine."""

    needs: ClassVar[frozenset[Operation]] = frozenset({"kill", "start"})

    def inflict(self, node_ids: tuple[int, ...], running: Sequence[int]) -> tuple[Step, ...]:
        """Kill the nodes."""
        del running
        return (Step(operation="kill", node_ids=node_ids),)

    def take_back(self, node_ids: tuple[int, ...]) -> tuple[Step, ...]:
        """Start them again."""
        return (Step(operation="start", node_ids=node_ids),)


FAULTS: Final = (Kill,)

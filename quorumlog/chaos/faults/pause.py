"""pause: one process stops for a while, and its connections stay open."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import Operation, ProcessFault, Step, named


@named("pause", "SIGSTOP a node, SIGCONT it after a while: its connections stay open")
class Pause(ProcessFault):
    """SIGSTOP to a node: it goes on later, unaware that time has passed."""

    needs: ClassVar[frozenset[Operation]] = frozenset({"pause", "resume"})
    drawn_duration_ms: ClassVar[tuple[int, int]] = (500, 5_000)

    def inflict(self, node_ids: tuple[int, ...], running: Sequence[int]) -> tuple[Step, ...]:
        """Stop the nodes."""
        del running
        return (Step(operation="pause", node_ids=node_ids),)

    def take_back(self, node_ids: tuple[int, ...]) -> tuple[Step, ...]:
        """Let them go on."""
        return (Step(operation="resume", node_ids=node_ids),)


FAULTS: Final = (Pause,)

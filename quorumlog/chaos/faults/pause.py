"""pause: a process stops and later goes on, unaware that time has passed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import Operation, ProcessFault, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(ProcessFault):
    """SIGSTOP to a node: its connections stay open."""

    name: ClassVar[str] = "pause"
    text: ClassVar[str] = "SIGSTOP a node, SIGCONT it after a while: its connections stay open"
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

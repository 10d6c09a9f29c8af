"""pause_kill: a leader runs alone for a moment and then dies with records that only it holds.

A cluster that waits for its replicas has acknowledged none of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import MILLION, Operation, ProcessFault, Step, check_range

_ALONE_US: Final = 700_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseKill(ProcessFault):
    """SIGSTOP to all nodes but one, SIGKILL to that one, SIGCONT to the others."""

    name: ClassVar[str] = "pause_kill"
    text: ClassVar[str] = (
        "SIGSTOP all but a partition leader, SIGKILL it a moment later, SIGCONT the others"
    )
    targets: ClassVar[tuple[str, ...]] = ("partition-leader",)
    needs: ClassVar[frozenset[Operation]] = frozenset({"kill", "start", "pause", "resume"})
    alone_us: int = _ALONE_US

    def __post_init__(self) -> None:
        check_range("alone_us", self.alone_us, 0, 60 * MILLION)

    def inflict(self, node_ids: tuple[int, ...], running: Sequence[int]) -> tuple[Step, ...]:
        """Pause the others, wait, kill `node_ids`, and let the others go on."""
        others = tuple(node_id for node_id in running if node_id not in node_ids)
        return (
            Step(operation="pause", node_ids=others, wait_us=self.alone_us),
            Step(operation="kill", node_ids=node_ids),
            Step(operation="resume", node_ids=others),
        )

    def take_back(self, node_ids: tuple[int, ...]) -> tuple[Step, ...]:
        """Start what was killed."""
        return (Step(operation="start", node_ids=node_ids),)


FAULTS: Final = (PauseKill,)

"""pause_kill: a leader runs alone for a moment, and dies with what only it has."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import MILLION, Operation, ProcessFault, Step, named, ranged


@named(
    "pause_kill",
    "SIGSTOP all but a partition leader, SIGKILL it a moment later, SIGCONT the others",
    targets=("partition-leader",),
)
class PauseKill(ProcessFault):
    """SIGSTOP to all nodes but one, SIGKILL to that one, SIGCONT to the others.

    A leader runs alone for a moment, and dies with records that only it holds. A cluster that waits
    for its replicas has acknowledged none of them.
    """

    needs: ClassVar[frozenset[Operation]] = frozenset({"kill", "start", "pause", "resume"})
    mends: ClassVar[Operation] = "start"
    alone_us: int = ranged(0, 60 * MILLION, default=700_000)

    def inflict(self, node_ids: tuple[int, ...], running: Sequence[int]) -> tuple[Step, ...]:
        """Pause the others, wait, kill `node_ids`, and let the others go on."""
        others = tuple(node_id for node_id in running if node_id not in node_ids)
        return (
            Step(operation="pause", node_ids=others, wait_us=self.alone_us),
            Step(operation="kill", node_ids=node_ids),
            Step(operation="resume", node_ids=others),
        )


FAULTS: Final = (PauseKill,)

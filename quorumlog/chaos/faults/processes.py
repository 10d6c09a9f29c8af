"""Faults of processes: they are killed and started again, or paused and resumed."""

from collections.abc import Sequence
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL, MILLION, Operation, ProcessFault, Step, named, ranged


@named("kill", "SIGKILL a node, start it again after a while")
class Kill(ProcessFault):
    """SIGKILL to a node: its writes stay in the page cache of its machine."""

    needs: ClassVar[frozenset[Operation]] = frozenset({"kill", "start"})
    breaks: ClassVar[Operation] = "kill"
    mends: ClassVar[Operation] = "start"


@named("kill_all", "SIGKILL every node at once, start them again after a while", targets=(ALL,))
class KillAll(Kill):
    """SIGKILL to every node at the same moment: only written records survive."""


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


@named("pause", "SIGSTOP a node, SIGCONT it after a while: its connections stay open")
class Pause(ProcessFault):
    """SIGSTOP to a node: it goes on later, unaware that time has passed."""

    needs: ClassVar[frozenset[Operation]] = frozenset({"pause", "resume"})
    breaks: ClassVar[Operation] = "pause"
    mends: ClassVar[Operation] = "resume"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (500, 5_000)


FAULTS: Final = (Kill, KillAll, PauseKill, Pause)

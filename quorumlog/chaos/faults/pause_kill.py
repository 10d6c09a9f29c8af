"""pause_kill: a leader runs alone for a moment, and dies with what only it has."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import MILLION, Scene, Step, StepFault, named, ranged


@named(
    "pause_kill",
    "SIGSTOP all but a partition leader, SIGKILL it a moment later, SIGCONT the others",
    targets=("partition-leader",),
)
class PauseKill(StepFault):
    """SIGSTOP to all nodes but one, SIGKILL to that one, SIGCONT to the others.

    A leader runs alone for a moment, and dies with records that only it holds. A cluster that waits
    for its replicas has acknowledged none of them.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start", "pause", "resume"})
    breaks: ClassVar[str] = "kill"
    alone_us: int = ranged(0, 60 * MILLION, default=700_000)

    def inflict(self, scene: Scene) -> tuple[Step, ...]:
        """Pause the others, wait, kill the victims, and let the others go on."""
        others = tuple(node_id for node_id in scene.running if node_id not in scene.victims)
        return (
            Step(operation="pause", node_ids=others, wait_us=self.alone_us),
            Step(operation="kill", node_ids=scene.victims),
            Step(operation="resume", node_ids=others),
        )


FAULTS: Final = (PauseKill,)

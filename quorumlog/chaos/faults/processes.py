"""Faults of processes: they die, stop for a while, restart, or get little of a CPU."""

from collections.abc import Sequence
from typing import ClassVar

from quorumlog.chaos.faults.fault import (
    ALL,
    MILLION,
    NODE_ROLES,
    AnyStep,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)


@named("kill", "SIGKILL a node, start it again after a while", targets=NODE_ROLES)
class Kill(StepFault):
    """SIGKILL to a node: its writes stay in the page cache of its machine."""

    breaks: ClassVar[str] = "kill"


@named("kill_all", "SIGKILL every node at once, start them again after a while", targets=(ALL,))
class KillAll(Kill):
    """SIGKILL to every node at the same moment: only written records survive."""


@named(
    "pause",
    "SIGSTOP a node, SIGCONT it after a while: its connections stay open",
    targets=NODE_ROLES,
)
class Pause(StepFault):
    """SIGSTOP to a node: it goes on later, unaware that time has passed."""

    breaks: ClassVar[str] = "pause"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (500, 5_000)


@named("pause_all", "SIGSTOP every node at once, SIGCONT them after a while", targets=(ALL,))
class PauseAll(Pause):
    """As when the machine sleeps: every timeout has passed when it wakes up."""


@named(
    "pause_kill",
    "SIGSTOP all but a partition leader, SIGKILL it a moment later, SIGCONT the others",
    targets=("partition-leader",),
)
class PauseKill(StepFault):
    """SIGSTOP to all nodes but one, SIGKILL to that one, SIGCONT to the others.

    A leader runs alone for a moment, and dies with records that only it holds. A cluster that waits
    for its replicas has not acknowledged these records.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start", "pause", "resume"})
    breaks: ClassVar[str] = "kill"
    hits_others: ClassVar[bool] = True
    alone_us: int = ranged(0, 60 * MILLION, default=700_000)

    def inject(self, scene: Scene) -> tuple[Step, ...]:
        """Pause the others, wait, kill the victims, and let the others go on."""
        others = tuple(node_id for node_id in scene.running if node_id not in scene.victims)
        return (
            Step(operation="pause", node_ids=others, wait_us=self.alone_us),
            Step(operation="kill", node_ids=scene.victims),
            Step(operation="resume", node_ids=others),
        )


@named(
    "lag_kill",
    "SIGSTOP another node until it lags, SIGKILL a partition leader, SIGCONT the other",
    targets=("partition-leader",),
)
class LagKill(StepFault):
    """The node that is left for the leader's partitions has paused, and left their ISR.

    The leader acknowledges without it, and dies: a cluster that elects the lagging node loses these
    records. behind_us: the pause; longer than replica.lag.time.max.ms.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start", "pause", "resume"})
    breaks: ClassVar[str] = "kill"
    hits_others: ClassVar[bool] = True
    behind_us: int = ranged(0, 60 * MILLION, default=1_500_000)

    def inject(self, scene: Scene) -> tuple[Step, ...]:
        """Pause a random other node, wait, kill the victims, and let the other continue."""
        others = [node_id for node_id in scene.running if node_id not in scene.victims]
        scene.rng.shuffle(others)
        return (
            Step(operation="pause", node_ids=tuple(others[:1]), wait_us=self.behind_us),
            Step(operation="kill", node_ids=scene.victims),
            Step(operation="resume", node_ids=tuple(others[:1])),
        )


@named(
    "late_start",
    "SIGKILL every node at once; a partition leader starts seconds after the others",
    targets=("partition-leader",),
)
class LateStart(StepFault):
    """The machines come back one after the other, as after a loss of power.

    The first nodes follow a leader that is gone, until its session ends and they elect another:
    a replica that has truncated its log by then, and finds no leader to fetch from, may be elected.
    late_us: from the return of the others to the start of the victim; longer than
    broker.session.timeout.ms.
    """

    breaks: ClassVar[str] = "kill"
    hits_others: ClassVar[bool] = True
    late_us: int = ranged(0, 60 * MILLION, default=4_500_000)

    def inject(self, scene: Scene) -> tuple[Step, ...]:
        """Kill every node."""
        return (Step(operation="kill", node_ids=scene.running),)

    def heal(self, scene: Scene) -> tuple[Step, ...]:
        """Start the others, wait, and start the victims."""
        others = tuple(node_id for node_id in scene.running if node_id not in scene.victims)
        return (
            Step(operation="start", node_ids=others, wait_us=self.late_us),
            Step(operation="start", node_ids=scene.victims),
        )


@named("restart", "SIGTERM to a node, start it again after a while", targets=NODE_ROLES)
class Restart(StepFault):
    """The node hands over its leaderships before it ends."""

    breaks: ClassVar[str] = "stop"


@named("rolling_restart", "SIGTERM to each node in turn; it starts before the next", targets=(ALL,))
class RollingRestart(StepFault):
    """As an operator restarts a cluster: each node takes part again before the next one stops.

    between_us: from the return of a node to the stop of the next.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"stop", "start"})
    drawn_duration_ms: ClassVar[tuple[int, int]] = (6_000, 9_000)
    between_us: int = ranged(0, 60 * MILLION, default=500_000)

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Stop and start every node, in a random order."""
        nodes = list(scene.victims)
        scene.rng.shuffle(nodes)
        return [
            step
            for node_id in nodes
            for step in (
                Step(operation="stop", node_ids=(node_id,)),
                Step(operation="start", node_ids=(node_id,), wait_us=self.between_us),
            )
        ]

    def heal(self, scene: Scene) -> Sequence[AnyStep]:
        """Start the nodes that are still down, if a step failed."""
        return (Step(operation="start", node_ids=scene.victims),)


@named(
    "crash_loop",
    "SIGKILL a node several times, each time soon after it came back",
    targets=NODE_ROLES,
)
class CrashLoop(StepFault):
    """The node is killed `times` times, at most `alive_us` after it takes part again."""

    breaks: ClassVar[str] = "kill"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (3_000, 8_000)
    times: int = ranged(1, 100, default=3)
    alive_us: int = ranged(0, 60 * MILLION, default=800_000)

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Kill and start in turn; the last one stays down until the fault is taken back."""
        steps: list[AnyStep] = []
        for place in range(self.times):
            if place:
                alive_us = int(scene.rng.random() * self.alive_us)
                steps.append(Step(operation="start", node_ids=scene.victims, wait_us=alive_us))
            steps.append(Step(operation="kill", node_ids=scene.victims, wait_us=50_000))
        return steps


@named("starve", "a node gets a small share of a CPU for a while", targets=NODE_ROLES)
class Starve(StepFault):
    """The process runs `share_percent` of the time, in turns of a few tens of milliseconds."""

    breaks: ClassVar[str] = "starve"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (2_000, 6_000)
    share_percent: int = ranged(1, 90, default=15, is_amount=True)

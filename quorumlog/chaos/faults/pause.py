"""pause: one process stops for a while, and its connections stay open."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import NODE_ROLES, StepFault, named


@named(
    "pause",
    "SIGSTOP a node, SIGCONT it after a while: its connections stay open",
    targets=NODE_ROLES,
)
class Pause(StepFault):
    """SIGSTOP to a node: it goes on later, unaware that time has passed."""

    needs: ClassVar[frozenset[str]] = frozenset({"pause", "resume"})
    breaks: ClassVar[str] = "pause"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (500, 5_000)


FAULTS: Final = (Pause,)

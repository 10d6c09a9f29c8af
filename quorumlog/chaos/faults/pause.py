"""pause: one process stops for a while, and its connections stay open."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import Operation, ProcessFault, named


@named("pause", "SIGSTOP a node, SIGCONT it after a while: its connections stay open")
class Pause(ProcessFault):
    """SIGSTOP to a node: it goes on later, unaware that time has passed."""

    needs: ClassVar[frozenset[Operation]] = frozenset({"pause", "resume"})
    breaks: ClassVar[Operation] = "pause"
    mends: ClassVar[Operation] = "resume"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (500, 5_000)


FAULTS: Final = (Pause,)

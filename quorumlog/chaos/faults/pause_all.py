"""pause_all: every process stops at the same moment, and goes on later."""

from typing import Final

from quorumlog.chaos.faults.fault import ALL, named
from quorumlog.chaos.faults.pause import Pause


@named("pause_all", "SIGSTOP every node at once, SIGCONT them after a while", targets=(ALL,))
class PauseAll(Pause):
    """As when the machine sleeps: every timeout has passed when it wakes up."""


FAULTS: Final = (PauseAll,)

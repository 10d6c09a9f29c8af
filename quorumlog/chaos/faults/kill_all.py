"""kill_all: every process dies at the same moment."""

from typing import Final

from quorumlog.chaos.faults.fault import ALL, named
from quorumlog.chaos.faults.kill import Kill


@named("kill_all", "SIGKILL every node at once, start them again after a while", targets=(ALL,))
class KillAll(Kill):
    """SIGKILL to every node at the same moment: only written records survive."""


FAULTS: Final = (KillAll,)

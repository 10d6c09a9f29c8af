"""kill_all: every process dies at the same moment, so only written records survive."""

from dataclasses import dataclass
from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL
from quorumlog.chaos.faults.kill import Kill


@dataclass(frozen=True, slots=True, kw_only=True)
class KillAll(Kill):
    """SIGKILL to every node."""

    name: ClassVar[str] = "kill_all"
    text: ClassVar[str] = "SIGKILL every node at once, start them again after a while"
    targets: ClassVar[tuple[str, ...]] = (ALL,)


FAULTS: Final = (KillAll,)

"""kill: one process dies at once."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import NODE_ROLES, StepFault, named


@named("kill", "SIGKILL a node, start it again after a while", targets=NODE_ROLES)
class Kill(StepFault):
    """SIGKILL to a node: its writes stay in the page cache of its machine."""

    needs: ClassVar[frozenset[str]] = frozenset({"kill", "start"})
    breaks: ClassVar[str] = "kill"


FAULTS: Final = (Kill,)

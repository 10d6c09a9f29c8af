"""restart: a node is stopped in order, and started again after a while."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import NODE_ROLES, StepFault, named


@named("restart", "SIGTERM to a node, start it again after a while", targets=NODE_ROLES)
class Restart(StepFault):
    """The node hands over what it leads before it ends."""

    needs: ClassVar[frozenset[str]] = frozenset({"stop", "start"})
    breaks: ClassVar[str] = "stop"


FAULTS: Final = (Restart,)

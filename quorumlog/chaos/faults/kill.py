"""kill: one process dies at once."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import Operation, ProcessFault, named


@named("kill", "SIGKILL a node, start it again after a while")
class Kill(ProcessFault):
    """SIGKILL to a node: its writes stay in the page cache of its machine."""

    needs: ClassVar[frozenset[Operation]] = frozenset({"kill", "start"})
    breaks: ClassVar[Operation] = "kill"
    mends: ClassVar[Operation] = "start"


FAULTS: Final = (Kill,)

"""A node whose high watermark follows the leader's own log end: it acknowledges what it alone has.

`quorumlog chaos run --mutant high-watermark --fault pause-kill` must end invalid.
"""

import sys
from collections.abc import Iterable

from quorumlog.broker.partitions.core.isr import Progress
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.partitions.core.partition_state import Marks
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes


class Mutant(Partition):
    """A partition whose leader counts no follower."""

    def _replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[Progress]:
        del role, now_ms
        return []

    def check_invariants(self, before: Marks, *, truncates: bool = False) -> None:
        """Check nothing: else the node would end, and here the history has to tell."""
        del before, truncates


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Substitutes(partition=Mutant)))

"""A node whose high watermark follows its own log, and whose core notices it: exit status 70."""

import sys
from collections.abc import Iterable

from quorumlog.broker.partitions.core.isr import Progress
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes


class Mutant(Partition):
    """A partition whose leader counts no follower, and checks its own invariants."""

    def _replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[Progress]:
        del role, now_ms
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Substitutes(partition=Mutant)))

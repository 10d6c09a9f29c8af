"""A node with the same broken rule, whose core is let to notice it: the process ends, status 70."""

import sys
from collections.abc import Iterable

from quorumlog.broker.core.isr import Progress
from quorumlog.broker.core.partition import Partition
from quorumlog.broker.core.roles import Leader
from quorumlog.node.assemble import NodeParts
from quorumlog.node.main import main


class Mutant(Partition):
    def _replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[Progress]:
        return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], NodeParts(partition=Mutant)))

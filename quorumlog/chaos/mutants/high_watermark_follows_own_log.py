"""A node whose high watermark follows its own log end: it acknowledges what it alone holds.

`quorumlog chaos run --mutant high-watermark --fault pause_kill` must end invalid.
"""

import sys
from collections.abc import Iterable

from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr import FollowerProgress
from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import Marks, PartitionInvariants
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes


class CountsNoFollower(HighWatermarkRule):
    """Commits whatever the leader alone holds."""

    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        """Count no follower."""
        del role, now_ms
        return []


class Unchecked(PartitionInvariants):
    """Checks nothing: the node would end otherwise, and here the history has to tell."""

    def check(self, before: Marks, *, truncates: bool = False) -> None:
        """Check nothing."""
        del before, truncates


if __name__ == "__main__":
    rules = PartitionRules(high_watermark=CountsNoFollower, invariants=Unchecked)
    sys.exit(main(sys.argv[1:], Substitutes(partition_rules=rules)))

"""A node whose high watermark follows its own log; its core notices that: exit status 70."""

import sys
from collections.abc import Iterable

from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.core.isr import FollowerProgress
from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes


class CountsNoFollower(HighWatermarkRule):
    """Commits whatever the leader alone holds."""

    def replicas_that_count(self, role: Leader, now_ms: int) -> Iterable[FollowerProgress]:
        """Count no follower."""
        del role, now_ms
        return []


if __name__ == "__main__":
    rules = PartitionRules(high_watermark=CountsNoFollower)
    sys.exit(main(sys.argv[1:], Substitutes(partition_rules=rules)))

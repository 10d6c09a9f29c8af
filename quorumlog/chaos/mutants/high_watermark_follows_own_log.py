"""A node whose high watermark follows its own log end: it acknowledges what it alone holds.

`quorumlog chaos run --mutant high-watermark --fault pause_kill` must end invalid. The node does not
check itself: it would end otherwise, and here the history has to tell.
"""

import sys

from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.chaos.simulation.worlds.brokers.mutants import CommitsAlone
from quorumlog.chaos.simulation.worlds.brokers.rules import Unchecked
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes

if __name__ == "__main__":
    rules = PartitionRules(high_watermark=CommitsAlone, invariants=Unchecked)
    sys.exit(main(sys.argv[1:], Substitutes(partition_rules=rules)))

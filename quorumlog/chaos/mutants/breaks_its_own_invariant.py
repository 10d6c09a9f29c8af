"""A node whose high watermark follows its own log; its core notices that: exit status 70."""

import sys

from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.chaos.simulation.worlds.brokers.mutants import CommitsAlone
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes

if __name__ == "__main__":
    rules = PartitionRules(high_watermark=CommitsAlone)
    sys.exit(main(sys.argv[1:], Substitutes(partition_rules=rules)))

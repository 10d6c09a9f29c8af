"""A node that treats every batch of an idempotent producer as new (KIP-98 turned off).

`quorumlog chaos run --mutant forgets-producers --workload idempotent_send --fault pause` must end
invalid: a batch that is sent again, because its answer was late, is in the log twice.
"""

import sys
from typing import Final

from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.core.producer_state import Check, ProducerStates
from quorumlog.node.main import main
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader

_APPEND: Final = Check(ErrorCode.NONE)


class Mutant(ProducerStates):
    """The producers of a partition, of which no batch is known."""

    def check(self, batch: BatchHeader) -> Check:
        """Append it, whatever was appended before."""
        del batch
        return _APPEND


if __name__ == "__main__":
    rules = PartitionRules(producers=Mutant)
    sys.exit(main(sys.argv[1:], Substitutes(partition_rules=rules)))

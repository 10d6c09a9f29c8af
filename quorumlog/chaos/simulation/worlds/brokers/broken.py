"""All mutants of the world `partition`: of replicas, flushes and storage."""

from typing import Final

from quorumlog.chaos.simulation.worlds.brokers.flush_mutants import FLUSH_MUTANTS
from quorumlog.chaos.simulation.worlds.brokers.mutants import PARTITION_MUTANTS
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES, BrokenRules
from quorumlog.chaos.simulation.worlds.storage_mutants import STORAGE_MUTANTS

REPLICA_RULES: Final = PARTITION_MUTANTS.rules | FLUSH_MUTANTS.rules
BROKEN_REPLICAS: Final = PARTITION_MUTANTS.made | FLUSH_MUTANTS.made
PARTITION_RULES: Final = REPLICA_RULES | STORAGE_MUTANTS.rules
BROKEN_PARTITIONS: Final = BROKEN_REPLICAS | {
    name: BrokenRules(partition=UNCHECKED_RULES, storage=made)
    for name, made in STORAGE_MUTANTS.made.items()
}

"""The parts of a node that a test may replace."""

from dataclasses import dataclass
from pathlib import Path

from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.node.identity import BOOT_ID_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitutes:
    """The defaults are the real parts. A mutant of the chaos lab replaces `partition_rules`."""

    partition_rules: PartitionRules = KAFKA_RULES
    boot_id_file: Path = BOOT_ID_FILE

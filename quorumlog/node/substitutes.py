"""The parts of a node that a test may replace."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.server.api import ApiHandler
from quorumlog.node.identity import BOOT_ID_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitutes:
    """The defaults are the real parts.

    A mutant of the chaos lab replaces `partition_rules`, or one of `handlers` (by API key).
    """

    partition_rules: PartitionRules = KAFKA_RULES
    handlers: Mapping[int, ApiHandler] = field(default_factory=lambda: HANDLERS)
    boot_id_file: Path = BOOT_ID_FILE

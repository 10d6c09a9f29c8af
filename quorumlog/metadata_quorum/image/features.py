"""The features of this release, and their levels (KIP-584).

Nodes of two releases must read the same metadata from one log. So a record type that an older
release cannot read is written only once its level is in force. The level is itself a record:
docs/decisions/0009-feature-levels.md

The levels of Kafka's `group.version` and `transaction.version` set the protocols that clients may
use: docs/decisions/0009-feature-levels.md
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# DEVIATION: Kafka's metadata.version counts other records.
# docs/decisions/0009-feature-levels.md
METADATA_FEATURE: Final = "quorumlog.metadata.version"
FIRST_LEVEL: Final = 1  # in force without a record
GROUP_FEATURE: Final = "group.version"  # 1: the consumer groups of KIP-848
TRANSACTION_FEATURE: Final = "transaction.version"  # 1: flexible records; 2: KIP-890
LEVEL_OF_ACCESS: Final = 2
LEVEL_OF_DIRECTORIES: Final = 3
LEVEL_OF_GROUP_CONFIGS: Final = 4
LEVEL_OF_LAST_KNOWN_ELR: Final = 5
LEVEL_OF_CLUSTER_MIN_ISR: Final = 6
LEVEL_OF_CLIENT_METRICS: Final = 7
LEVEL_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        FIRST_LEVEL: "topics and brokers",
        LEVEL_OF_ACCESS: "ACLs, client quotas, SCRAM",
        LEVEL_OF_DIRECTORIES: "brokers with several log directories",
        LEVEL_OF_GROUP_CONFIGS: "configurations of groups",
        LEVEL_OF_LAST_KNOWN_ELR: "replicas that may lack records",
        LEVEL_OF_CLUSTER_MIN_ISR: "min.insync.replicas of the cluster",
        LEVEL_OF_CLIENT_METRICS: "subscriptions to metrics of clients",
    }
)
NEWEST_LEVEL: Final = max(LEVEL_NAMES)

KRAFT_FEATURE: Final = "kraft.version"  # 1: the voters are in the metadata log (KIP-853)
KRAFT_VERSION_MAX: Final = 1

NEW_CLUSTER_LEVELS: Final[Mapping[str, int]] = MappingProxyType(
    {
        GROUP_FEATURE: 1,
        KRAFT_FEATURE: KRAFT_VERSION_MAX,
        METADATA_FEATURE: NEWEST_LEVEL,
        TRANSACTION_FEATURE: 2,
    }
)
"""The newest levels, with which a new cluster begins.

The record of kraft.version is an order to the quorum, which then writes the voters to its log.
"""


def first_level(name: str) -> int:
    """Return the level that is in force without a record; 0: off."""
    return FIRST_LEVEL if name == METADATA_FEATURE else 0


ANNOUNCED: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {name: (first_level(name), newest) for name, newest in NEW_CLUSTER_LEVELS.items()}
)
"""By feature, the least and the greatest level that this release supports."""

SUPPORTED: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {name: levels for name, levels in ANNOUNCED.items() if name != KRAFT_FEATURE}
)
"""The features whose level is in force from its record on: all but kraft.version."""


def level_problem(supported: Mapping[str, tuple[int, int]], name: str, level: int) -> str | None:
    """Return why a node with these features does not support a level, or None.

    A node that does not list a feature supports only its first level.
    """
    first = first_level(name)
    least, greatest = supported.get(name, (first, first))
    if least <= level <= greatest:
        return None
    return f"level {level} of {name} is in force, and only {least} to {greatest} are supported"
